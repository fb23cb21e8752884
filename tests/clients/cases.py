"""What the scripts beside this one have in common. They run with the packages of requirements/clients.txt only.

Each script marks one function for each case with `@cases.case`. It returns when the package did what it should; a case
that asks for an error goes through `refused`. The outcome of each is one line of JSON on standard output.
"""

import json
import os
import sys
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable
from typing import Any, NoReturn

URL = os.environ.get("CORRAL_URL", "")
KEY = os.environ.get("CORRAL_KEY", "")
CHAT, EMBED, ECHO, SLOW, FAILING = "chat", "embed", "echo", "slow", "failing"
"""A text model whose template has no tools and an embedding model, both llama.cpp's; then the echo backend, which calls
tools, which takes minutes, and which fails after two tokens."""
QUESTION = "What is the capital of France? Answer in one sentence."
ASKED: list[Any] = [{"role": "user", "content": QUESTION}]
LONG: list[Any] = [{"role": "user", "content": "word " * 2000}]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PICTURE: list[Any] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        ],
    }
]
NULLS: list[Any] = [
    {"role": "user", "content": QUESTION, "name": None, "tool_call_id": None, "reasoning_content": None}
]
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": SCHEMA}}
    for name in ("look", "listen")
]
NAMED: Any = {"type": "function", "function": {"name": "listen"}}
MALFORMED: list[Any] = [{"type": "function", "function": {"description": "it has no name"}}]

_Case = Callable[[], None]
_cases: list[_Case] = []


def case(function: _Case) -> _Case:
    """Have `run` call it; its name, with spaces, is the name of the case."""
    _cases.append(function)
    return function


class Wrong(AssertionError):
    """The package did something else than it should."""


def check(holds: object, told: object = "") -> None:
    if not holds:
        raise Wrong(str(told))


def refused(call: Callable[[], object], kind: type[Exception], *, code: str, param: str) -> None:
    """The package raises its own error for a bad request, with OpenAI's code and the field."""
    try:
        call()
    except kind as error:
        told = f"{getattr(error, 'status_code', None)} {error}"
        check(getattr(error, "status_code", None) == 400, told)
        check(code in str(error) or getattr(error, "code", None) == code, told)
        check(param in str(error) or getattr(error, "param", None) == param, told)
        return
    raise Wrong("it was answered")


def until_under_way(model: str, count: int) -> None:
    """Until the gateway has so many requests of this model at replicas. It tells nobody: we have to look again."""
    deadline = time.monotonic() + 30
    while under_way(model) != count:
        check(time.monotonic() < deadline, f"{under_way(model)} requests of {model} are under way, and not {count}")
        threading.Event().wait(0.05)


def under_way(model: str) -> int:
    request = urllib.request.Request(f"{URL}/metrics", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("corral_gateway_in_flight{") and f'model="{model}"' in line]
    return sum(int(float(line.rpartition(" ")[2])) for line in found)


def run() -> NoReturn:
    for each in _cases:
        told = ""
        try:
            each()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the outcome
            told = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
        sys.stdout.write(json.dumps({"case": each.__name__.replace("_", " "), "error": told}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # some packages leave threads behind
