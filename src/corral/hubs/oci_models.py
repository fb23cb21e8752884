"""Models in registries of images: which layers of a manifest are the model's files.

Known are the forms of Ollama, Docker's model runner, the CNCF's ModelPack and ORAS, whose layers are the files
themselves. An image whose layers are archives, as `docker build` makes, has its files inside of them.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from corral.base.errors import InvalidInput
from corral.base.words import listed
from corral.hubs.access import HubAccess
from corral.hubs.archives import member_url
from corral.hubs.listings import HubFile, HubListing, HubName, HubRefused, check_file_path
from corral.hubs.model_layers import ModelLayers, read_layers
from corral.hubs.ollama import OLLAMA_LAYER, describe
from corral.hubs.remote_files import archived_files
from corral.oci.errors import SourceInvalid
from corral.oci.manifests import Descriptor
from corral.oci.references import Reference, parse_reference

_PATHS: Final = ("org.cncf.model.filepath", "org.cnai.model.filepath", "org.opencontainers.image.title")
"""Annotations that name the file of a layer."""
_UNPACK: Final = "io.deis.oras.content.unpack"
_DOCKER_MODEL: Final = "application/vnd.docker.ai."
_DOCKER_FILES: Final[Mapping[str, str]] = {"gguf": "{name}.gguf", "mmproj": "mmproj-{name}.gguf"}


async def list_model_image(image: str, hub: HubAccess) -> HubListing:
    """Return the files of a model in a registry. InvalidInput for what is no reference, or is not a model."""
    try:
        reference = parse_reference(image)
    except SourceInvalid as error:
        raise InvalidInput("reference", error.message) from error
    model = await read_layers(mirrored(reference, hub.config.oci_url), hub, HubName.OCI)
    name = reference.repository.rpartition("/")[2]
    resolved = f"oci://{reference.name}@{model.digest}"
    if any(layer.media_type.startswith(OLLAMA_LAYER) for layer in model.layers):
        return await describe(model, name=name, resolved=resolved, hub=HubName.OCI)
    files: list[HubFile] = []
    for layer in model.layers:
        if is_archive(layer):
            files += await _files_inside(model, layer, hub)
        elif (file := _file_of(model, layer, name)) is not None:
            files.append(file)
    if not files:
        kinds = listed(sorted({layer.media_type or "no type" for layer in model.layers}))
        raise InvalidInput("reference", f"{image[:200]} is not a model: its layers are of {kinds or 'no kind'}")
    return HubListing(name=name, resolved=resolved, files=tuple(files), licence=model.licence)


def mirrored(reference: Reference, base: str) -> Reference:
    """Return the same model in the registry of a URL; unchanged if there is none. A path of the URL comes first."""
    if not base:
        return reference
    parts = urlsplit(base)
    repository = f"{parts.path.strip('/')}/{reference.repository}".lstrip("/")
    return Reference(registry=parts.netloc, repository=repository, tag=reference.tag, digest=reference.digest)


def _file_of(model: ModelLayers, layer: Descriptor, name: str) -> HubFile | None:
    """Return the file in a layer; None if models do not need it."""
    annotations, kind = layer.annotations or {}, layer.media_type
    path = next((annotations[key] for key in _PATHS if annotations.get(key)), "")
    if kind.startswith(_DOCKER_MODEL):
        word = kind.removeprefix(_DOCKER_MODEL).partition(".")[0]
        path = _DOCKER_FILES.get(word, "").format(name=name)
    elif not path and len(model.layers) == 1:
        path = f"{name}.gguf"
    if not path:
        return None
    try:
        return model.file(layer, check_file_path(path), HubName.OCI)
    except InvalidInput as error:
        raise HubRefused(f"{model.reference}: a layer cannot be used: {error.problem}") from error


async def _files_inside(model: ModelLayers, layer: Descriptor, hub: HubAccess) -> list[HubFile]:
    """Return the files of an archive that can be seen from its beginning; later layers may have more."""
    archive = model.file(layer, "archive", HubName.OCI)
    files: list[HubFile] = []
    for name, size in await archived_files(hub, archive.planned(archive.path)):
        with suppress(InvalidInput):  # a name that no disk takes: whatever it is, it is not the model
            path = check_file_path(name)
            files.append(replace(archive, path=path, url=member_url(archive.url, name), size=size))
    return files


def is_archive(layer: Descriptor) -> bool:
    """Whether the files are inside of a layer."""
    kind = layer.media_type
    return (
        kind.endswith((".tar", ".tar.gzip", "+gzip", "+zstd"))
        or ".tar" in kind
        or (layer.annotations or {}).get(_UNPACK) == "true"
    )
