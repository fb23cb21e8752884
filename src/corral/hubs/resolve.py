"""From a reference to the plan of a pull: asks the hub what there is, looks into the files, and decides.

Nothing is downloaded but heads of files. What a plan says is pinned: a commit, digests, sizes.
"""

import asyncio
import os
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import quote, urlsplit

import msgspec
from msgspec.structs import replace

from corral.base.errors import CorralError, InvalidInput
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.base.words import listed, near_names
from corral.hubs.access import HubAccess
from corral.hubs.archives import member_url, split_member
from corral.hubs.choose import (
    GgufBuild,
    PullWish,
    choose_build,
    choose_projector,
    default_build,
    describe_choices,
    directory_files,
    files_beside,
    group_builds,
    is_gguf,
    is_projector,
    parts_of,
    without_quantisation,
)
from corral.hubs.configure import (
    GENERIC_NAMES,
    check_name,
    clean_name,
    configure_directory,
    configure_gguf,
)
from corral.hubs.estimate import LoadSettings, estimate_by_size, estimate_memory
from corral.hubs.gguf import GgufFacts, GgufKind
from corral.hubs.huggingface import NEAR, list_repository
from corral.hubs.listings import HubFile, HubListing, HubModelMissing, HubRefused, OwnSettings
from corral.hubs.oci_models import list_model_image
from corral.hubs.ollama import list_ollama
from corral.hubs.plans import BuildChoice, ModelOrigin, PlannedFile, PullPlan
from corral.hubs.references import (
    FileReference,
    GalleryReference,
    HuggingFaceReference,
    ModelReference,
    OciReference,
    OllamaReference,
    UrlReference,
    parse_reference,
)
from corral.hubs.remote_files import local_path, look_into_gguf, measure, read_small

FIRST_MODEL: Final = "corral:first-model"
"""The small model that comes with the set-up, as the built-in gallery names its file."""
_MOST_CONFIG: Final = 1 << 20
_MOST_LOCAL: Final = 10_000
_MOST_PARTS: Final = 200
"""Parts of a split file behind a URL, each of which is asked for its size."""
_SHOWN: Final = 6


async def plan_reference(reference: ModelReference, wish: PullWish, hub: HubAccess) -> PullPlan:
    """Return what to download, and the configuration of the model that it makes.

    Raise InvalidInput for what cannot be a model, HubModelMissing, HubRefused or HubUnavailable for what a hub says.
    Names of galleries are resolved by the caller.
    """
    if wish.name:
        check_name(wish.name)
    match reference:
        case HuggingFaceReference():
            listing = await list_repository(reference, hub)
            return await _plan_listing(listing, wish, hub, path=reference.path, build=reference.quantisation)
        case UrlReference(url=url):
            return await _plan_listing(await _list_url(url, hub), wish, hub)
        case FileReference(path=path):
            listing = await asyncio.to_thread(_list_local, Path(path))
            return await _plan_listing(listing, wish, hub)
        case OllamaReference():
            return await _plan_listing(await list_ollama(reference, hub), wish, hub)
        case OciReference(image=image):
            return await _plan_listing(await list_model_image(image, hub), wish, hub)
        case GalleryReference(name=name):
            raise InvalidInput("reference", f"{name[:80]!r} is the name of an entry of a gallery")


async def plan_file(uri: str, path: str, sha256: str, hub: HubAccess) -> PlannedFile:
    """Return one file that an entry of a gallery names, to be at this path of the models directory.

    A hub that states size and digest is asked for them; a digest of the entry has precedence.
    """
    digest = f"sha256:{sha256.lower()}" if sha256 else ""
    if uri == FIRST_MODEL:
        return await _first_model(path, digest, hub)
    match parse_reference(uri):
        case HuggingFaceReference(path=wanted) as reference if wanted:
            listing = await list_repository(reference, hub)
            file = next((file for file in listing.files if file.path == wanted), None)
            if file is None:
                raise HubModelMissing(f"{reference.repository} has {wanted!r} as a folder, where a file is needed")
            planned = file.planned(path)
        case UrlReference(url=url):
            planned = PlannedFile(path=path, url=url)
        case OllamaReference() as reference:
            planned = _only_file(await list_ollama(reference, hub), path)
        case OciReference(image=image):
            planned = _only_file(await list_model_image(image, hub), path)
        case FileReference(path=local):
            planned = PlannedFile(path=path, url=await asyncio.to_thread(_file_url, Path(local)))
        case _:
            raise InvalidInput("uri", f"{uri[:80]!r} does not name one file")
    archive = split_member(planned.url)
    if archive.member:  # the hub's digest is that of the archive
        return msgspec.structs.replace(planned, url=member_url(archive.url, archive.member, sha256.lower()))
    if digest and planned.digest.startswith("sha256:") and planned.digest != digest:
        raise HubRefused(
            f"{path}: the gallery promises {digest}, and {urlsplit(planned.url).netloc} has {planned.digest}"
        )
    size = planned.size if planned.size is not None else await measure(hub, planned)
    return msgspec.structs.replace(planned, digest=digest or planned.digest, size=size)


def _only_file(listing: HubListing, path: str) -> PlannedFile:
    """Return the weights of a model in a registry; of several files the one that is called as the path ends."""
    files = listing.files
    named = [file for file in files if file.name == PurePosixPath(path).name]
    weights = [file for file in files if is_gguf(file) and not is_projector(file)]
    for candidates in (named, weights, files):
        if len(candidates) == 1:
            return candidates[0].planned(path)
    file_names = listed([file.path for file in files], most=_SHOWN)
    raise InvalidInput("uri", f"{listing.resolved} has several files, and none is called as {path!r}: {file_names}")


async def _first_model(path: str, digest: str, hub: HubAccess) -> PlannedFile:
    weights = hub.config.first_model
    if weights is None or not await asyncio.to_thread(weights.is_file):
        advice = "`make setup` gets it, and `corral up` names it; or set hubs.first_model_file"
        raise HubModelMissing(f"the model that comes with the set-up is not there: {advice}")
    size = (await asyncio.to_thread(weights.stat)).st_size
    return PlannedFile(path=path, url=_url_of(weights.absolute()), size=size, digest=digest)


async def _list_url(url: str, hub: HubAccess) -> HubListing:
    """Return the file of a URL; all parts of it if it is one part of several."""
    parts = urlsplit(url)
    folder = parts.path.rpartition("/")[0]
    files: list[HubFile] = []
    name = UrlReference(url=url).file_name
    names = parts_of(name)
    if len(names) > _MOST_PARTS:
        raise InvalidInput("reference", f"{name[:80]!r} is one of {len(names)} parts; {_MOST_PARTS} are the most")
    for part in names:
        address = url if part == name else parts._replace(path=f"{folder}/{quote(part)}").geturl()
        planned = PlannedFile(path=part or "file", url=address)
        files.append(HubFile(path=part or "file", url=address, size=await measure(hub, planned)))
    return HubListing(name=_stem(files[0].name), resolved=url, files=tuple(files))


def _stem(name: str) -> str:
    return without_quantisation(name[: -len(".gguf")] if name.lower().endswith(".gguf") else name)


def _list_local(path: Path) -> HubListing:
    """Return a file with the other parts of it, or all files of a directory. Blocks."""
    path = Path(os.path.abspath(path.expanduser()))
    try:
        if path.is_dir():
            paths = sorted(islice((file for file in path.rglob("*") if file.is_file()), _MOST_LOCAL + 1))
            root = path
            if len(paths) > _MOST_LOCAL:
                problem = f"has more than {_MOST_LOCAL} files; name the directory of one model, or its file"
                raise InvalidInput("reference", f"{path} {problem}")
        else:
            root = path.parent
            paths = [root / name for name in parts_of(path.name)]
        files = tuple(
            HubFile(path=file.relative_to(root).as_posix(), url=_url_of(file), size=file.stat().st_size)
            for file in paths
        )
    except OSError as error:
        raise HubModelMissing(f"{error.filename or path} cannot be read: {error.strerror}") from error
    return HubListing(name=path.name if root == path else _stem(path.name), resolved=_url_of(path), files=files)


def _file_url(path: Path) -> str:
    path = Path(os.path.abspath(path.expanduser()))
    if not path.is_file():
        raise HubModelMissing(f"there is no file {path}")
    return _url_of(path)


def _url_of(path: Path) -> str:
    return path.as_uri()


async def _plan_listing(
    listing: HubListing, wish: PullWish, hub: HubAccess, *, path: str = "", build: str = ""
) -> PullPlan:
    """Decide what of a listing is the model. `path` and `build` are what the reference itself names."""
    files = files_beside(path, listing.files) if path else listing.files
    if path and not files:
        near = near_names(path, [file.path for file in listing.files], cutoff=NEAR)
        raise HubModelMissing(f"{listing.resolved} has no {path!r}" + (f"; there is {listed(near)}" if near else ""))
    builds = await asyncio.to_thread(group_builds, files)  # a repository may have a hundred thousand files
    if not builds and len(listing.files) == 1 and not listing.files[0].path.endswith(".safetensors"):
        only = listing.files[0]  # a file without the usual ending: its content decides
        builds = (GgufBuild(name=only.name, stem=only.name, quantisation="", files=(only,)),)
    if builds:
        if any(file.path == path for file in files):  # one file: the repository may have other models
            listing = replace(listing, name=without_quantisation(builds[0].stem))
        return await GgufPlanner(listing, files, wish, hub).plan(builds, build)
    members = directory_files(files)
    if members:
        return await _plan_directory(listing, members, wish, hub)
    file_names = listed([file.path for file in files], most=_SHOWN) or "nothing"
    raise InvalidInput(
        "reference",
        f"{listing.resolved} has neither GGUF files nor safetensors with a config.json; it has {file_names}",
    )


class GgufPlanner:
    """Plans a model of GGUF files."""

    def __init__(self, listing: HubListing, files: tuple[HubFile, ...], wish: PullWish, hub: HubAccess) -> None:
        self._listing = listing
        self._files = files
        self._wish = wish
        self._hub = hub
        self._context = wish.context or hub.config.context

    async def plan(self, builds: tuple[GgufBuild, ...], build: str) -> PullPlan:
        """Choose a build, and look into it; all builds of a repository have the same cache."""
        wish = self._wish if self._wish.build or not build else replace(self._wish, build=build)
        probe = default_build(builds)
        facts = await self._facts(probe)

        def needed(candidate: GgufBuild) -> int:
            return estimate_memory(facts.shape.resized(candidate.bytes), self._settings(facts)).total

        chosen, notes = choose_build(builds, wish, needed)
        if chosen is not probe:
            facts = await self._facts(chosen)
        projector = choose_projector(self._files, chosen)
        name = self._wish.name or self._name(facts)
        folder = clean_name(name)
        paths = [_place_of(file, folder, self._wish) for file in chosen.files]
        configured = configure_gguf(
            name,
            paths[0],
            facts,
            context=self._context,
            projector=_place_of(projector, folder, self._wish) if projector else "",
            author_settings=_own(self._listing, self._wish),
        )
        planned = [file.planned(path) for file, path in zip(chosen.files, paths, strict=True)]
        planned[0] = msgspec.structs.replace(planned[0], shape=facts.shape)
        if projector is not None and facts.kind in (GgufKind.CHAT, GgufKind.COMPLETION):
            planned.append(projector.planned(_place_of(projector, folder, self._wish)))
        planned += [file.planned(f"{folder}/{file.name}") for file in self._listing.beside]
        return PullPlan(
            name=name,
            config=configured.text,
            files=tuple(planned),
            origin=_origin(self._listing, self._wish, facts.licence),
            choices=describe_choices(builds, chosen, wish, needed),
            notes=(*self._listing.notes, *notes, *configured.notes),
        )

    def _settings(self, facts: GgufFacts) -> LoadSettings:
        """How it would be loaded if nobody changed its configuration."""
        context = min(facts.context_length or self._context, self._context)
        if facts.kind in (GgufKind.EMBEDDING, GgufKind.RERANK):
            return LoadSettings(context=context, batch=context, makes_vectors=True)
        return LoadSettings(context=context)

    async def _facts(self, build: GgufBuild) -> GgufFacts:
        first = build.files[0]
        try:
            return await look_into_gguf(self._hub, first.planned(first.path))
        except InvalidInput as error:
            raise InvalidInput("reference", f"{first.path} cannot be used: {error.problem}") from error

    def _name(self, facts: GgufFacts) -> str:
        name = self._listing.name
        return clean_name(facts.name if facts.name and name.lower() in GENERIC_NAMES else name)


def _place_of(file: HubFile, folder: str, wish: PullWish) -> str:
    """Return where a file will be: in the model's folder, or where it is in the models directory already."""
    path = local_path(file.url)
    if path is not None and wish.directory is not None and path.is_relative_to(wish.directory):
        return path.relative_to(wish.directory).as_posix()
    return f"{folder}/{file.name}"


async def _plan_directory(
    listing: HubListing, members: tuple[HubFile, ...], wish: PullWish, hub: HubAccess
) -> PullPlan:
    name = wish.name or clean_name(listing.name)
    folder = clean_name(name)
    configured = configure_directory(
        name,
        folder,
        facts=await _read_config(members, hub),
        tags=listing.tags,
        context=wish.context or hub.config.context,
        has_gpu=any(machine.vram_bytes for machine in wish.machines),
    )
    size = sum(file.size or 0 for file in members)
    needed = estimate_by_size(size).total
    choice = BuildChoice(
        name="safetensors",
        bytes=size,
        files=len(members),
        needed_bytes=needed,
        fits=needed <= wish.memory_bytes if wish.memory_bytes else None,
        is_chosen=True,
    )
    return PullPlan(
        name=name,
        config=configured.text,
        choices=(choice,),
        files=tuple(file.planned(f"{folder}/{file.path}") for file in members),
        origin=_origin(listing, wish),
        notes=(*listing.notes, *configured.notes),
    )


async def _read_config(members: tuple[HubFile, ...], hub: HubAccess) -> dict[str, object]:
    """Return the `config.json` of a repository; empty if it cannot be read."""
    file = next(file for file in members if file.path == "config.json")
    try:
        content = await read_small(hub, file.planned(file.path), _MOST_CONFIG)
        return msgspec.json.decode(content, type=dict[str, object])
    except (CorralError, *UNREADABLE_JSON):
        return {}


def _own(listing: HubListing, wish: PullWish) -> OwnSettings:
    """Return what the hub says about the model; a context that somebody asks for has precedence."""
    if not wish.context:
        return listing.own
    return replace(listing.own, top={key: value for key, value in listing.own.top.items() if key != "context_size"})


def _origin(listing: HubListing, wish: PullWish, licence: str = "") -> ModelOrigin:
    return ModelOrigin(reference=wish.text, resolved=listing.resolved, licence=listing.licence or licence)
