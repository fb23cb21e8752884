"""llama.cpp with one model, as its backend loads it: says what it allocates, and ends.

Standard input is one line of JSON with the fields of `ModelOptions`; the log goes to standard error, and what the
kernel counts for the process when the model is loaded to standard output, as one line of JSON. `PYTHONPATH` leads to
the backend and the SDK.
"""

import importlib
import json
import os
import sys
from typing import Any, Final

import psutil

_EVERYTHING: Final = 5


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    backend: dict[str, Any] = {
        name: importlib.import_module(name)
        for name in ("corral_backend_sdk", "llama_parameters", "engine", "xllamacpp")
    }
    sdk = backend["corral_backend_sdk"]
    options = sdk.ModelOptions(**json.loads(sys.stdin.readline()))
    parameters = backend["llama_parameters"].parameters_for(options, sdk.Launch(address="127.0.0.1:1"), os.environ)
    server = backend["xllamacpp"].Server(backend["engine"].build({**parameters, "verbosity": _EVERYTHING}))
    answer = {"resident": psutil.Process().memory_info().rss, "address": server.listening_address}
    print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
