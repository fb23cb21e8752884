"""Asks Hugging Face, or a mirror with the same routes, for the files of a repository at one commit."""

import asyncio
from typing import Final, TypeVar
from urllib.parse import quote, urlencode, urljoin, urlsplit

import msgspec

from corral.base.errors import InvalidInput
from corral.base.http_facts import host_of, origin_of
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.base.words import listed, near_names
from corral.hubs.access import HubAccess
from corral.hubs.listings import (
    HubFile,
    HubListing,
    HubModelMissing,
    HubName,
    HubRefused,
    HubUnavailable,
    check_file_path,
)
from corral.hubs.references import HuggingFaceReference
from corral.oci.http import RegistryResponse

_MOST_BYTES: Final = 32 << 20
_MOST_FILES: Final = 100_000
_MOST_PAGES: Final = 200
_MOST_NAMES: Final = 500
NEAR: Final = 0.5
_HEX: Final = frozenset("0123456789abcdef")
T = TypeVar("T")


class _LargeFile(msgspec.Struct):
    """What Git LFS knows about a file. The routes name its hash differently."""

    sha256: str = ""
    oid: str = ""
    size: int | None = None


class _Sibling(msgspec.Struct, rename="camel"):
    rfilename: str
    size: int | None = None
    blob_id: str = ""
    lfs: _LargeFile | None = None


class _Repository(msgspec.Struct, rename="camel"):
    sha: str = ""
    siblings: list[_Sibling] = []
    tags: list[str] = []
    pipeline_tag: str | None = msgspec.field(default=None, name="pipeline_tag")
    library_name: str | None = msgspec.field(default=None, name="library_name")
    card_data: dict[str, object] | None = None


class _RepositoryEntry(msgspec.Struct):
    type: str
    path: str
    size: int | None = None
    oid: str = ""
    lfs: _LargeFile | None = None


class _Named(msgspec.Struct):
    id: str = ""


async def list_repository(reference: HuggingFaceReference, hub: HubAccess) -> HubListing:
    """Return the files of a repository, or of the folder or the one file that the reference names.

    HubModelMissing names what is like it. HubRefused says what to do about a licence or a token.
    """
    api = f"{hub.config.hf_url}/api/models/{reference.repository}"
    url = f"{api}/revision/{quote(reference.revision, safe='')}?blobs=true"

    async def problem(answer: RegistryResponse) -> Exception:
        return await _problem(answer, reference, hub)

    body, _ = await hub.document(url, HubName.HUGGING_FACE, most=_MOST_BYTES, problem=problem)
    repository = _decode(body, _Repository, hub)
    if not repository.sha or not set(repository.sha) <= _HEX:
        raise HubRefused(f"{_host(hub)} does not say which commit {reference.revision} of {reference.repository} is")
    entries = [(file.rfilename, file.size, file.blob_id, file.lfs) for file in repository.siblings]
    if any(size is None for _, size, _, _ in entries):
        entries = [
            (file.path, file.size, file.oid, file.lfs)
            for file in await _tree(f"{api}/tree/{repository.sha}?recursive=true", reference, hub)
            if file.type == "file"
        ]
    base = f"{hub.config.hf_url}/{reference.repository}/resolve/{repository.sha}"
    files = await asyncio.to_thread(lambda: tuple(_file(base, *entry) for entry in entries[:_MOST_FILES]))
    return HubListing(
        name=reference.repository.partition("/")[2],
        resolved=f"hf://{reference.repository}@{repository.sha}",
        files=files,
        licence=_licence(repository),
        tags=frozenset((*repository.tags, repository.pipeline_tag or "", repository.library_name or "")),
    )


async def _tree(url: str, reference: HuggingFaceReference, hub: HubAccess) -> list[_RepositoryEntry]:
    """Return all pages of a listing. A next page at another host is not asked for."""
    entries: list[_RepositoryEntry] = []

    async def problem(answer: RegistryResponse) -> Exception:
        return await _problem(answer, reference, hub)

    for _ in range(_MOST_PAGES):
        body, link = await hub.document(url, HubName.HUGGING_FACE, most=_MOST_BYTES, problem=problem)
        entries += _decode(body, list[_RepositoryEntry], hub)
        onward = _next_page(url, link)
        if not onward:
            return entries
        if len(entries) > _MOST_FILES:
            break
        url = onward
    raise HubRefused(f"{reference.repository} has more than {_MOST_FILES} files")


def _next_page(url: str, link: str) -> str:
    """Return the address that a Link header names as the next page; empty if there is none at the same host."""
    for part in link.split(","):
        address, _, relation = part.partition(">")
        if 'rel="next"' in relation:
            onward = urljoin(url, address.strip().removeprefix("<"))
            return onward if origin_of(onward) == origin_of(url) else ""
    return ""


def _file(base: str, path: str, size: int | None, blob: str, lfs: _LargeFile | None) -> HubFile:
    try:
        check_file_path(path)
    except InvalidInput as error:
        raise HubRefused(f"{host_of(base)} lists a file that cannot be used: {error.problem}") from error
    sha256 = (lfs.sha256 or lfs.oid).removeprefix("sha256:").lower() if lfs else ""
    digest = ""
    if len(sha256) == 64 and set(sha256) <= _HEX:
        digest = f"sha256:{sha256}"
    elif lfs is None and len(blob) == 40 and set(blob) <= _HEX:
        digest = f"git-sha1:{blob}"
    stated = lfs.size if lfs is not None and lfs.size is not None else size
    return HubFile(
        path=path,
        url=f"{base}/{quote(path)}",
        hub=HubName.HUGGING_FACE,
        size=stated if stated is None or stated >= 0 else None,
        digest=digest,
    )


def _licence(repository: _Repository) -> str:
    stated: object = (repository.card_data or {}).get("license")
    if isinstance(stated, list) and stated:
        stated = stated[0]
    if isinstance(stated, str) and stated != "other":
        return stated[:100]
    name = (repository.card_data or {}).get("license_name")
    tagged = next((tag.partition(":")[2] for tag in repository.tags if tag.startswith("license:")), "")
    return (name if isinstance(name, str) else tagged)[:100]


async def _problem(answer: RegistryResponse, reference: HuggingFaceReference, hub: HubAccess) -> Exception:
    """Return the error for a status that is neither a success nor passing."""
    code, host = answer.header("X-Error-Code"), _host(hub)
    page = f"{hub.config.hf_url}/{reference.repository}"
    has_token = bool(hub.config.hf_token)
    if code == "GatedRepo":
        token = "" if has_token else ", and set HF_TOKEN (hubs.hf_token) to a token of that account"
        return HubRefused(
            f"{host} gives {reference.repository} to those who accept its licence: do so at {page}{token}"
        )
    is_missing = code == "RepoNotFound" or answer.status in (404, 410) or (answer.status == 401 and not has_token)
    names = await _repositories(reference.repository.partition("/")[0], hub) if is_missing else []
    if code == "RevisionNotFound" or reference.repository in names:
        return HubModelMissing(f"{reference.repository} has no branch, tag or commit {reference.revision!r}")
    if is_missing:
        near = near_names(reference.repository, names, cutoff=NEAR)
        hint = f"; there is {listed(near)}" if near else ""
        private = "; for a private one set HF_TOKEN (hubs.hf_token)" if not has_token else ""
        return HubModelMissing(f"{host} has no repository {reference.repository}{hint}{private}")
    if answer.status in (401, 403):
        advice = "the token of hubs.hf_token may not read it" if has_token else "set HF_TOKEN (hubs.hf_token)"
        return HubRefused(f"{host} does not give {reference.repository} ({answer.status}): {advice}; see {page}")
    return HubRefused(f"{host} answered {answer.status} for {reference.repository}")


async def _repositories(owner: str, hub: HubAccess) -> list[str]:
    """Return the repositories of an owner; empty if they cannot be had."""
    query = urlencode({"author": owner, "limit": _MOST_NAMES})

    async def problem(_: RegistryResponse) -> Exception:
        return HubRefused("no list")

    try:
        body, _ = await hub.document(
            f"{hub.config.hf_url}/api/models?{query}", HubName.HUGGING_FACE, most=_MOST_BYTES, problem=problem
        )
        return [entry.id for entry in msgspec.json.decode(body, type=list[_Named])]
    except (HubRefused, HubModelMissing, HubUnavailable, *UNREADABLE_JSON):
        return []


def _host(hub: HubAccess) -> str:
    return urlsplit(hub.config.hf_url).netloc


def _decode(body: bytes, kind: type[T], hub: HubAccess) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE_JSON as error:
        raise HubRefused(f"{_host(hub)} does not answer as Hugging Face does") from error
