"""llama.cpp's server in a process of its own, the child of `backend.py`.

Its own, because loading a model blocks a whole Python process for as long as it takes, and Health must be answered
meanwhile; and because ending it is the one sure way to get all memory and the port back.

Parameters come as one line of JSON on standard input, the outcome goes as one line to standard output: `address`, or
`error`. The engine ends when its standard input does, and at once when its parent dies.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any

import xllamacpp
from llama_network import connect_nowhere

_ENUMERATIONS = ("llama_", "ggml_")
_SET_PARENT_DEATH_SIGNAL = 1


def main() -> None:
    parent = os.getppid()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever llama.cpp prints belongs to the log
    die_with_parent(parent)
    connect_nowhere()
    wanted = json.loads(sys.stdin.readline())
    try:
        server = xllamacpp.Server(build(wanted))
    except (RuntimeError, AttributeError) as error:
        print(json.dumps({"error": str(error)}), file=answers, flush=True)
        sys.exit(1)  # not `os._exit`: llama.cpp writes its log from a thread, and what it says last is why it failed
    print(json.dumps({"address": server.listening_address}), file=answers, flush=True)
    sys.stdin.read()
    os._exit(0)


def die_with_parent(parent: int) -> None:
    """Where the system offers it; elsewhere the end of standard input has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def build(wanted: dict[str, Any]) -> Any:
    """xllamacpp's parameters with these values; see `llama_parameters.py` for how they are written."""
    parameters = xllamacpp.CommonParams()
    wanted = dict(wanted)
    parameters.model_alias = {wanted.pop("model_alias")}
    parameters.lora_adapters = [lora(one) for one in wanted.pop("lora_adapters", ())]
    if "tensor_split" in wanted:
        shares = wanted.pop("tensor_split")
        parameters.tensor_split = shares + [0.0] * (len(parameters.tensor_split) - len(shares))
    for name, value in wanted.items():
        owner, _, field = name.rpartition(".")
        setattr(getattr(parameters, owner) if owner else parameters, field, member(value))
    return parameters


def lora(one: dict[str, Any]) -> Any:
    adapter = xllamacpp.CommonAdapterLoraInfo()
    adapter.path, adapter.scale = one["path"], one["scale"]
    return adapter


def member(value: Any) -> Any:
    """The member of an enumeration that a text names; anything else is what it is."""
    if not isinstance(value, str) or not value.startswith(_ENUMERATIONS):
        return value
    enumeration, _, name = value.partition(".")
    return getattr(getattr(xllamacpp, enumeration), name)


if __name__ == "__main__":
    main()
