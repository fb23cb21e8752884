"""References to models: what a person types to name a model, whatever hub, server or file it means."""

import re
from collections.abc import Callable, Mapping
from pathlib import PurePath, PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from corral.base.errors import InvalidInput

OLLAMA_REGISTRY: Final = "registry.ollama.ai"
HUGGING_FACE: Final = "https://huggingface.co"
MAIN: Final = "main"

_LONGEST: Final = 2048
_SHOWN: Final = 80
_PAGES: Final = frozenset({"resolve", "blob", "tree", "raw"})
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_QUANTISATION: Final = re.compile(r"[A-Za-z0-9_]{1,24}")
_HOST: Final = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?")
_GALLERY_NAME: Final = re.compile(r"[^\s@/:]{1,100}@")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class HuggingFaceReference(msgspec.Struct, frozen=True, kw_only=True):
    repository: str
    """`owner/name`."""
    path: str = ""
    """One file, or a folder; empty for the whole repository."""
    revision: str = MAIN
    quantisation: str = ""
    """Which of several GGUF files is meant, as in `hf.co/owner/name:Q4_K_M`."""


class OllamaReference(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    tag: str = "latest"
    namespace: str = "library"
    registry: str = OLLAMA_REGISTRY


class OciReference(msgspec.Struct, frozen=True, kw_only=True):
    image: str


class UrlReference(msgspec.Struct, frozen=True, kw_only=True):
    url: str

    @property
    def file_name(self) -> str:
        return PurePosixPath(unquote(urlsplit(self.url).path)).name


class FileReference(msgspec.Struct, frozen=True, kw_only=True):
    path: PurePath


class GalleryReference(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a gallery of models, by its name; of any gallery when none is given."""

    name: str
    gallery: str = ""


ModelReference = HuggingFaceReference | OllamaReference | OciReference | UrlReference | FileReference | GalleryReference


def parse_reference(text: str) -> ModelReference:
    """What a person means. InvalidInput names what is wrong; nothing is asked, so the model need not exist."""
    text = text.strip()
    if not text or len(text) > _LONGEST or not text.isprintable():
        raise InvalidInput("reference", f"must be one line of up to {_LONGEST} characters, got {text[:_SHOWN]!r}")
    for prefix, read in _FORMS.items():
        if text.lower().startswith(prefix):
            return read(text, text[len(prefix) :])
    if scheme := _SCHEME.match(text):
        schemes = "hf://, ollama://, oci://, https://, http://, github:, file://"
        raise InvalidInput("reference", f"the scheme {scheme[0]} is unknown; there are {schemes}, a path, or a name")
    if gallery := _GALLERY_NAME.match(text):
        return GalleryReference(gallery=gallery[0][:-1], name=_required(text[gallery.end() :], text, "gallery@name"))
    return GalleryReference(name=text)


def likely_reference(name: str) -> str:
    """Return how a name that no gallery has would be written for a hub; empty if it does not look like any.

    People type `owner/name` as Hugging Face shows it, and `name:tag` as Ollama takes it.
    """
    owner, slash, rest = name.partition("/")
    model, colon, tag = name.partition(":")
    if slash and _NAME.fullmatch(owner) and _NAME.fullmatch(rest):
        return f"hf://{name}"
    if colon and _NAME.fullmatch(model) and _NAME.fullmatch(tag):
        return f"ollama://{name}"
    return ""


def _page(text: str, rest: str) -> HuggingFaceReference:
    """The address of a page of Hugging Face, as people copy it from their browser."""
    owner, name, *more = (*unquote(urlsplit(rest).path).strip("/").split("/"), "")
    if more and more[0] in _PAGES:
        revision, *path = more[1:] or [MAIN]
        return _hugging_face(text, "/".join(part for part in (owner, f"{name}@{revision}", *path) if part))
    return _hugging_face(text, "/".join(part for part in (owner, name, *more) if part))


def _hugging_face(text: str, rest: str) -> HuggingFaceReference:
    """`owner/name`, then a path, `@revision` behind either of the two, or `:quantisation`."""
    rest, _, revision = rest.strip("/").rpartition("@") if "@" in rest else (rest, "", MAIN)
    if "/" in revision:  # hf://owner/name@revision/path
        revision, _, behind = revision.partition("/")
        rest = f"{rest}/{behind}"
    rest, _, quantisation = rest.partition(":")
    owner, _, more = rest.partition("/")
    name, _, path = more.partition("/")
    if not _NAME.fullmatch(owner) or not _NAME.fullmatch(name):
        raise InvalidInput("reference", f"{text[:_SHOWN]!r} must name a repository as hf://owner/name")
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise InvalidInput("reference", f"{revision[:_SHOWN]!r} is not a branch, tag or commit")
    if quantisation and not _QUANTISATION.fullmatch(quantisation):
        raise InvalidInput("reference", f"{quantisation[:_SHOWN]!r} is not a quantisation such as Q4_K_M")
    if path:
        _check_path(path)
    build = "" if quantisation.lower() == "latest" else quantisation.upper()  # Ollama's users write it
    return HuggingFaceReference(repository=f"{owner}/{name}", path=path, revision=revision, quantisation=build)


def _ollama(text: str, rest: str) -> OllamaReference:
    """`[registry/][namespace/]name[:tag]`. A first part with a dot or a port is a registry."""
    *before, last = rest.split("/")
    name, colon, tag = last.partition(":")
    registry = before.pop(0) if before and ("." in before[0] or ":" in before[0]) else OLLAMA_REGISTRY
    namespace = before.pop(0) if before else "library"
    parts = (name, namespace, tag if colon else "latest")
    if before or not all(_NAME.fullmatch(part) for part in parts) or not _HOST.fullmatch(registry):
        raise InvalidInput("reference", f"{text[:_SHOWN]!r} must be like ollama://name:tag or ollama://user/name:tag")
    return OllamaReference(name=name, tag=parts[2], namespace=namespace, registry=registry)


def _github(text: str, rest: str) -> UrlReference:
    """The address of a file of a repository: `github:owner/name/path@branch`."""
    path, _, branch = rest.partition("@")
    owner, _, more = path.partition("/")
    name, _, file = more.partition("/")
    if (
        not _NAME.fullmatch(owner)
        or not _NAME.fullmatch(name)
        or not file
        or (branch and not _REVISION.fullmatch(branch))
    ):
        raise InvalidInput("reference", f"{text[:_SHOWN]!r} must be like github:owner/repository/path@branch")
    _check_path(file)
    return UrlReference(url=f"https://raw.githubusercontent.com/{owner}/{name}/{branch or MAIN}/{file}")


def _ollama_page(text: str, rest: str) -> OllamaReference:
    """The address of a page of Ollama, as people copy it from their browser. It names no other registry, which checks
    of the host would not see."""
    reference = _ollama(text, unquote(urlsplit(rest).path).strip("/"))
    if reference.registry != OLLAMA_REGISTRY:
        raise InvalidInput(
            "reference", f"{text[:_SHOWN]!r} names another registry; write it like ollama://host/user/name"
        )
    return reference


def _oci(text: str, rest: str) -> OciReference:
    return OciReference(image=_required(rest, text, "oci://registry/repository:tag"))


def _image(text: str, rest: str) -> OciReference:
    _required(rest, text, "quay.io/team/model:tag")
    return OciReference(image=text)


def _url(text: str, _: str) -> UrlReference:
    try:
        parts = urlsplit(text)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError as error:
        raise InvalidInput("reference", f"{text[:_SHOWN]!r} is no URL: {error}") from None
    if parts.username or parts.password:
        raise InvalidInput("reference", "a URL must not carry a login: give the token by the setting for its host")
    if not parts.hostname or not port_is_valid:
        raise InvalidInput("reference", f"{text[:_SHOWN]!r} is no URL: it has no host")
    return UrlReference(url=text)


def _file_url(text: str, rest: str) -> FileReference:
    return _path(text, unquote(rest))


def _file(text: str, _: str) -> FileReference:
    return _path(text, text)


def _path(text: str, path: str) -> FileReference:
    if "\0" in path or not PurePath(path).name:
        raise InvalidInput("reference", f"{text[:_SHOWN]!r} names no file")
    return FileReference(path=PurePath(path))


def _required(rest: str, text: str, form: str) -> str:
    if not rest:
        raise InvalidInput("reference", f"{text[:_SHOWN]!r} is not complete; it must be like {form}")
    return rest


def _check_path(path: str) -> None:
    """InvalidInput for a path that leads out of where it begins."""
    if any(part in ("", ".", "..") for part in path.split("/")) or "\\" in path:
        raise InvalidInput("reference", f"{path[:_SHOWN]!r} must be a path without empty parts, . and ..")


_FORMS: Final[Mapping[str, Callable[[str, str], ModelReference]]] = {
    "huggingface://": _hugging_face,
    "hf://": _hugging_face,
    "hf.co/": _hugging_face,
    "https://hf.co/": _page,
    "https://huggingface.co/": _page,
    "ollama://": _ollama,
    "https://ollama.com/": _ollama_page,
    "oci://": _oci,
    "quay.io/": _image,
    "ghcr.io/": _image,
    "docker.io/": _image,
    "github://": _github,
    "github:": _github,
    "http://": _url,
    "https://": _url,
    "file://": _file_url,
    "/": _file,
    "./": _file,
    "../": _file,
    "~": _file,
}
"""How a reference begins, and who reads it. The first that fits counts."""
