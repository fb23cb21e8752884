"""Reads the live stream of a frontend, as a page would."""

from dataclasses import dataclass
from typing import Any, Protocol

import msgspec


class EventText(Protocol):
    """A stream that gives one whole event at a time."""

    async def next(self) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveEvent:
    """One event of the live stream; comments and the time to wait have no name."""

    name: str = ""
    id: str = ""
    data: Any = None
    text: bytes = b""

    @classmethod
    def parse(cls, text: bytes) -> "LiveEvent":
        fields = dict(line.split(b": ", 1) for line in text.split(b"\n") if b": " in line and not line.startswith(b":"))
        return cls(
            name=fields.get(b"event", b"").decode(),
            id=fields.get(b"id", b"").decode(),
            data=msgspec.json.decode(fields[b"data"]) if b"data" in fields else None,
            text=text,
        )


async def next_event(stream: EventText) -> LiveEvent:
    """The next event that is not a comment."""
    while True:
        event = LiveEvent.parse(await stream.next())
        if event.name:
            return event


class LiveState:
    """What a page knows: topics by name, items by key. Applies events as a page must."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, Any]] = {}
        self.place = ""
        self.ready: dict[str, Any] | None = None
        self.changes: list[LiveEvent] = []

    def apply(self, event: LiveEvent) -> None:
        self.place = event.id or self.place
        match event.name:
            case "ready":
                self.ready = event.data
            case "snapshot":
                known = {} if event.data.get("first") else self.topics[event.data["topic"]]
                self.topics[event.data["topic"]] = {**known, **event.data["items"]}
            case "change":
                self.changes.append(event)
                items = self.topics[event.data["topic"]]
                items.update(event.data["items"])
                for key in event.data.get("gone", ()):
                    items.pop(key, None)

    async def read_until_ready(self, stream: EventText) -> None:
        self.ready = None
        while self.ready is None:
            self.apply(await next_event(stream))


async def until_ready(stream: EventText) -> dict[str, dict[str, Any]]:
    """The snapshots of a new stream."""
    state = LiveState()
    await state.read_until_ready(stream)
    return state.topics
