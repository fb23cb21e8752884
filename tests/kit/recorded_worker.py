"""Puts recorded questions to LocalAI's worker to ours, each on a node that is as the recorded one must have been.

Field presence, types, flags and keys must be the same; of a text what the protocol's references quote, which is all of
it unless a word of Go's or of somebody's machine is in it.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from corral.base.errors import CorralError
from corral.oci.config import ImagesConfig
from corral.wire.replicas import ProcessKey
from corral.worker.config import SupervisionConfig
from corral.worker.installing.backend_metadata import Metadata
from corral.worker.installing.directory_source import DirectorySource
from corral.worker.installing.image_source import Pulls, UriSource
from corral.worker.installing.orders import CannotInstall, Delivered, Fetching, InstallableBackend, InstallOrder
from corral.worker.membership.addresses import parse_host_port
from tests.kit.backend_node import NODE, SleepingNode
from tests.kit.backend_scripts import write_backend

SUBJECTS: Final = frozenset(
    f"{noun}.{verb}"
    for noun, verbs in {
        "backend": ("install", "upgrade", "delete", "list"),
        "models": ("running",),
        "model": ("unload", "stop", "delete"),
    }.items()
    for verb in verbs
)
"""Subjects that are answered; `files.*` have a separate test."""

_SLEEPS: Final = "exec sleep 1000"
_IMAGE: Final = "oci://"
_OWN_WORDS: Final = (
    "invalid request: ",
    "decoding backend galleries: ",
    "freeing process ",
    "address mismatch for process ",
    "installing backend from gallery: failed to download backend ",
    "installing backend from gallery: not a valid backend: run file not found ",
    "backend hang#0 did not become ready within ",
)
"""Where these begin a text, the rest is in the words of Go, of a machine, of a setting or of a port."""
_ALIASES: Final = {"custom": "my-alias", "ext": "ea", "ext1": "al1"}
_BACKENDS: Final = ("mock", "custom", "ext", "dirb", "img2", "ext0", "ext1", "cpu-mockm")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    subject: str
    """Subject without the node id."""
    data: bytes
    reply: Any
    """None when there was no subscriber."""
    note: str

    def __str__(self) -> str:
        return f"{self.subject} {self.data!r} ({self.note})"

    @property
    def request(self) -> Mapping[str, Any]:
        try:
            document = json.loads(self.data)
        except ValueError:
            return {}
        return {name.lower(): value for name, value in document.items()} if isinstance(document, dict) else {}


def questions(path: Path) -> list[RecordedRequest]:
    """The requests that a worker of LocalAI's answered, or would have answered had it known the subject."""
    requests = []
    for message in json.loads(path.read_text(encoding="utf-8"))["messages"]:
        subject = ".".join(message.get("subject", "").split(".")[2:])
        is_asked = message.get("direction", "").endswith("-> LocalAI worker") and subject.split(".")[0] != "files"
        if is_asked and ("reply" in message or message.get("outcome") == "no responders"):
            data = message.get("bytes", "").encode()
            requests.append(
                RecordedRequest(subject=subject, data=data, reply=message.get("reply"), note=message.get("note", ""))
            )
    return requests


class RecordedSource:
    """What the recorded gallery and registry had."""

    async def find(self, order: InstallOrder) -> InstallableBackend | None:
        name = order.name if order.uri else order.backend.rpartition("@")[2].lower()
        if order.uri.startswith(_IMAGE) and name:
            return self._found(Metadata(name=name, alias=order.alias, uri=order.uri))
        if order.uri or "nope" in name:
            return None
        match name:
            case "mock":
                return self._found(Metadata(name=name, version="1.0.0", uri="oci://127.0.0.1:5055/mock:latest"))
            case "metamock":
                return self._found(Metadata(name="cpu-mockm"), Metadata(name=name, meta_backend_for="cpu-mockm"))
            case "broken" | "plainhttp":
                raise CannotInstall(f'failed to download backend "{name}"')
            case "norun":
                return InstallableBackend(metadata=Metadata(name=name), fetch=_fetch_nothing)
        return None

    def _found(self, metadata: Metadata, meta: Metadata | None = None) -> InstallableBackend:
        return InstallableBackend(metadata=metadata, fetch=_fetch, meta=meta)


async def _fetch(fetching: Fetching) -> Delivered:
    made = write_backend(fetching.into, "made", shell=_SLEEPS)
    (made / "run.sh").rename(fetching.into / "run.sh")
    made.rmdir()
    return Delivered()


async def _fetch_nothing(fetching: Fetching) -> Delivered:
    (fetching.into / "readme").touch()
    return Delivered()


class _StubBackend:
    """A backend that is healthy, unless nothing shall become ready, and cannot free a model."""

    def __init__(self, *, is_healthy: bool) -> None:
        self._is_healthy = is_healthy

    async def health(self, *, timeout: timedelta) -> None:
        if not self._is_healthy:
            raise CorralError("not yet")

    async def free(self, *, timeout: timedelta) -> None:
        raise CorralError("method Free not implemented")

    async def close(self) -> None: ...


class RecordedNode(SleepingNode):
    """Our handlers over real processes that only sleep, on the recorded worker's ports."""

    def __init__(self, folder: Path, *, advertised: str, becomes_ready: bool = True) -> None:
        pulls = Pulls(ImagesConfig(), cache=folder / "layers")
        super().__init__(
            folder=folder,
            limits=SupervisionConfig() if becomes_ready else SupervisionConfig(ready_within=timedelta(seconds=1)),
            connect=lambda *_: _StubBackend(is_healthy=becomes_ready),
            system=folder / "system",
            sources=[DirectorySource(), RecordedSource(), UriSource(pulls)],
            advertised=advertised,
        )

    def write_disk(self) -> None:
        """Everything that the recorded worker had installed at one time or another."""
        for name in _BACKENDS:
            self._write(name, Metadata(name=name, alias=_ALIASES.get(name, "")))
        (self.installed / "metamock").mkdir()
        self._describe("metamock", Metadata(name="metamock", meta_backend_for="cpu-mockm"))
        write_backend(self.system, "sysmock", shell=_SLEEPS)
        for name in ("del/x", "m/x", "a#b/x", "one.bin", "one.bin.sha256", "one.bin.mmproj", "one.bin2"):
            path = self.models_folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def write_listed(self, entries: list[dict[str, Any]] | None) -> None:
        """A disk that is as a list says."""
        for entry in entries or []:
            fields = {name: value for name, value in entry.items() if name not in {"is_system", "is_meta"}}
            if entry["is_system"]:
                write_backend(self.system, entry["name"], shell=_SLEEPS)
            elif entry["is_meta"]:
                (self.installed / entry["name"]).mkdir(parents=True)
                self._describe(entry["name"], Metadata(**fields, meta_backend_for="cpu-mockm"))
            else:
                self._write(entry["name"], Metadata(**fields))

    def write_sources(self) -> None:
        """Directories that were installed from."""
        sources = self.folder / "srv"
        for name in ("img1", "img2"):
            write_backend(sources, name, shell=_SLEEPS)
        lines = "for i in $(seq 1 25); do echo line $i >&2; done; exit 1"
        write_backend(sources / "bk", "crash", shell=lines)
        write_backend(sources / "bk", "hang", shell=f"echo starting >&2; {_SLEEPS}")

    async def start(self, key: ProcessKey, backend: str) -> int:
        """A process of this key; the port that it has."""
        is_backend = key.model_id in {*_BACKENDS, "sysmock", "metamock"}
        model = "" if is_backend else key.model_id
        return (await self.install(key.model_id if is_backend else backend, model, key.replica_index)).port

    def _write(self, name: str, metadata: Metadata) -> None:
        write_backend(self.installed, name, shell=_SLEEPS)
        self._describe(name, metadata)

    def _describe(self, name: str, metadata: Metadata) -> None:
        fields = {field: getattr(metadata, field) for field in metadata.__struct_fields__ if getattr(metadata, field)}
        (self.installed / name / "metadata.json").write_text(json.dumps(fields))


async def differences(question: RecordedRequest, folder: Path) -> list[str]:
    """Ask it; how our answer differs, in no way when the list is empty."""
    reply = question.reply or {}
    becomes_ready = not any(words in str(reply.get("error")) for words in ("died during", "did not become"))
    advertised = reply.get("address", "127.0.0.3:1")
    async with RecordedNode(folder, advertised=advertised, becomes_ready=becomes_ready) as node:
        if question.subject == "backend.list":
            node.write_listed(question.reply["backends"])
        else:
            node.write_disk()
            node.write_sources()
        data = await _prepared(node, question)
        if question.reply is None:
            return [f"{question.subject} is answered"] if _full(question) in node.handlers else []
        answer = await node.ask(question.subject, data)
        ours = None if answer is None else json.loads(answer)
        return _compared(question.reply, ours)


def _full(question: RecordedRequest) -> str:
    return f"nodes.{NODE}.{question.subject}"


async def _prepared(node: RecordedNode, question: RecordedRequest) -> bytes:
    """Processes and directories as they were before the question; the question with our paths and ports."""
    request, reply = question.request, question.reply or {}
    backend = str(request.get("backend", ""))
    if "backend not found" in str(reply.get("error", "")) and backend in _BACKENDS:
        shutil.rmtree(node.installed / backend)
    if request.get("uri") and "again" not in question.note:
        shutil.rmtree(node.installed / str(request.get("name") or Path(request["uri"]).name), ignore_errors=True)
    if "old alias" in question.note:
        node._describe("ext", Metadata(name="ext", alias="eb"))
    for text in reply.get("stopped_process_keys", []):
        if (key := ProcessKey.parse(text)) is not None:
            await node.start(key, backend)
    for model in reply.get("models", []):
        await node.start(ProcessKey(model["model_id"], model["replica_index"]), "mock")
    data = question.data.replace(b"/srv/", f"{node.folder}/srv/".encode())
    return await _with_our_port(node, question, data)


async def _with_our_port(node: RecordedNode, question: RecordedRequest, data: bytes) -> bytes:
    if question.subject != "model.stop" or not question.reply["matched"]:
        return data
    key = ProcessKey.parse(question.request["process_key"])
    recorded = parse_host_port(question.reply["address"])
    if key is None or recorded is None:
        raise AssertionError(f"cannot be played: {question}")
    return data.replace(f":{recorded.port}".encode(), f":{await node.start(key, 'mock')}".encode())


def _compared(recorded: Mapping[str, Any], ours: Any) -> list[str]:
    if not isinstance(ours, dict):
        return [f"no object: {ours!r}"]
    names = set(recorded) ^ (set(ours) - {"corral"})
    differences = [f"only one of both has {name}: {ours}" for name in sorted(names)]
    for name in set(recorded) & set(ours):
        if not _is_alike(name, recorded[name], ours[name]):
            differences.append(f"{name}: {ours[name]!r} instead of {recorded[name]!r}")
    return differences


def _is_alike(name: str, recorded: Any, ours: Any) -> bool:
    match name:
        case "error":
            return str(ours).startswith(_binding(recorded))
        case "address":
            places = parse_host_port(recorded), parse_host_port(ours)
            hosts = {place.host for place in places if place is not None}
            return None not in places and len(hosts) == 1
        case "stopped_process_keys":
            return sorted(recorded) == sorted(ours)
        case "models" | "backends":
            return _as_set(recorded) == _as_set(ours)
    return type(recorded) is type(ours) and recorded == ours


def _binding(text: str) -> str:
    return next((start for start in _OWN_WORDS if text.startswith(start)), text)


def _as_set(entries: list[dict[str, Any]] | None) -> set[tuple[tuple[str, Any], ...]] | None:
    """In no order; ports are each worker's own."""
    if entries is None:
        return None
    return {
        tuple(sorted((name, "port" if name == "address" else value) for name, value in entry.items()))
        for entry in entries
    }
