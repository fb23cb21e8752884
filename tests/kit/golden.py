"""Plays recorded requests to LocalAI's frontend against ours, and says where the answers differ.

Key order and white space mean nothing; presence, types, status codes and the words of messages up to their quoted
prefix do. Ids, times and measured values are the recording's own, so only their form is compared.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corral.wire.go_json import parse_time
from tests.kit.frontend import Frontend

RECORDED_ADMIN_KEY = "adminkey"
_LONG = re.compile(r"<(\d+) x n>")
_TIMES = frozenset({"last_heartbeat", "created_at", "updated_at"})
_FREE = frozenset({"id", "api_token", "node_id", *_TIMES})


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenMessage:
    file: str
    index: int
    message: Mapping[str, Any]

    @property
    def route(self) -> tuple[str, str]:
        return self.message["method"], self.message["path"]

    def __str__(self) -> str:
        return f"{self.file}[{self.index}] {' '.join(self.route)} ({self.message.get('note', '')})"


def read_recording(path: Path) -> list[GoldenMessage]:
    messages = json.loads(path.read_text(encoding="utf-8"))["messages"]
    return [GoldenMessage(file=path.name, index=index, message=message) for index, message in enumerate(messages)]


@dataclass(slots=True, kw_only=True)
class Player:
    """Keeps which of our nodes stands for which recorded one."""

    frontends: Mapping[bool, Frontend]
    """By whether new nodes are approved at once."""
    ours: dict[str, str] = field(default_factory=dict)

    async def play(self, recorded: GoldenMessage) -> list[str]:
        """Send the request; returns the differences, none when the answers are alike."""
        message = recorded.message
        answer = await self._send(message)
        differences = []
        if answer.status != message["status"]:
            differences.append(f"status {answer.status} instead of {message['status']}: {answer.body!r}")
        response = message.get("response", "")
        got = answer.json() if answer.body else ""
        self._learn(message, response, got)
        if message.get("response_headers", {}).get("WWW-Authenticate") != answer.headers.get("www-authenticate"):
            differences.append("WWW-Authenticate differs")
        return differences + list(differences_between(response, got, "$"))

    async def _send(self, message: Mapping[str, Any]) -> Any:
        auto = message.get("response", {})
        approves = not (isinstance(auto, dict) and auto.get("status") == "pending")
        frontend = self.frontends[approves]
        headers = {name.lower(): value for name, value in message["headers"].items()}
        bearer = headers.pop("authorization", "").removeprefix("Bearer ")
        key = frontend.admin_key if bearer == RECORDED_ADMIN_KEY else bearer
        kind = headers.get("content-type", "")
        return await frontend.call(
            message["method"],
            self._path(message["path"]),
            _body(message.get("request")),
            key=key,
            **({"content_type": kind} if kind else {}),
        )

    def _path(self, path: str) -> str:
        return "/".join(self.ours.get(part, part) for part in path.split("/"))

    def _learn(self, message: Mapping[str, Any], recorded: object, got: object) -> None:
        if isinstance(recorded, dict) and isinstance(got, dict) and "id" in recorded and "id" in got:
            self.ours[recorded["id"]] = got["id"]


def _body(request: object) -> bytes | None:
    if request is None:
        return None
    if isinstance(request, str):
        return request.encode()
    text = json.dumps(request)
    return _LONG.sub(lambda match: "n" * int(match[1]), text).encode()


def differences_between(recorded: object, got: object, path: str) -> list[str]:
    """Where two documents are not alike; see the top of this module."""
    if isinstance(recorded, dict) and isinstance(got, dict):
        return _object_differences(recorded, got, path)
    if isinstance(recorded, list) and isinstance(got, list):
        if len(recorded) != len(got):
            return [f"{path}: {len(got)} entries instead of {len(recorded)}"]
        pairs = zip(recorded, got, strict=True)
        return [
            line
            for number, (left, right) in enumerate(pairs)
            for line in differences_between(left, right, f"{path}[{number}]")
        ]
    name = path.rpartition(".")[2]
    if type(recorded) is not type(got):
        return [f"{path}: {type(got).__name__} instead of {type(recorded).__name__}"]
    if name in _TIMES:
        return _time_differences(str(got), path)
    if name in _FREE or isinstance(recorded, int):
        return []
    if name == "message" and isinstance(recorded, str) and isinstance(got, str):
        return [] if got.startswith(recorded) else [f"{path}: {got!r} instead of {recorded!r}"]
    return [] if recorded == got else [f"{path}: {got!r} instead of {recorded!r}"]


def _object_differences(recorded: Mapping[str, object], got: Mapping[str, object], path: str) -> list[str]:
    missing = [f"{path}.{name}: missing" for name in recorded if name not in got]
    extra = [f"{path}.{name}: not in the recording" for name in got if name not in recorded and name != "corral"]
    shared = [
        line
        for name in recorded
        if name in got
        for line in differences_between(recorded[name], got[name], f"{path}.{name}")
    ]
    return missing + extra + shared


def _time_differences(text: str, path: str) -> list[str]:
    try:
        parse_time(text)
    except ValueError as error:
        return [f"{path}: {error}"]
    return []
