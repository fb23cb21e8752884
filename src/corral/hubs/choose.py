"""Which files of a repository make one model, which builds of it there are, and which is taken. Pure."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.errors import InvalidInput
from corral.base.words import format_size, listed
from corral.hubs.listings import HubFile
from corral.hubs.plans import BuildChoice

_SPLIT: Final = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})", re.DOTALL)
_QUANTISATION: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:UD-)?(?:IQ[1-4]_(?:XXS|XS|S|M|NL)|TQ[12]_0|MXFP4(?:_MOE)?|BF16|F(?:P)?16|F(?:P)?32"
    r"|Q[2-8]_(?:K(?:_(?:XXL|XL|XS|S|M|L))?|[01](?:_[0-9]_[0-9])?)|Q[2-8])(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_SAME: Final = {"FP16": "F16", "FP32": "F32"}
_DEFAULTS: Final = (
    "Q4_K_M", "UD-Q4_K_XL", "Q4_K_L", "Q4_K_S", "Q4_K", "MXFP4", "MXFP4_MOE", "IQ4_XS", "IQ4_NL", "Q4_0", "Q4_1", "Q4",
)  # fmt: skip
"""What is taken where nobody asks for anything else: half the size of eight bits, and hardly any worse."""
_UNQUANTISED: Final = frozenset({"F32", "F16", "BF16"})
_PROJECTORS: Final = ("F16", "BF16", "Q8_0", "F32")
"""Pictures need precision; all engines know F16."""
_MOST_PARTS: Final = 10_000
_USABLE: Final = 0.9
"""The share of a machine's RAM that a model may take; other programs need the remainder."""
_NEEDED_NAMES: Final = frozenset(
    ("tokenizer.model", "merges.txt", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model")
)
_NEEDED_ENDINGS: Final = (".json", ".jinja", ".safetensors", ".py", ".tiktoken")
_UNNEEDED: Final = ("onnx/", "openvino/", "original/", "coreml/", "consolidated", ".git")


class MachineMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one machine of the fleet."""

    ram_bytes: int = 0
    vram_bytes: int = 0

    @property
    def usable_bytes(self) -> int:
        """Where models run: the GPU's memory if there is one. 0: unknown."""
        return self.vram_bytes or int(self.ram_bytes * _USABLE)


class PullWish(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asks to pull: a reference, a name, a build, and the machines that it should fit."""

    text: str
    """The reference, as it was typed."""
    name: str = ""
    """What the model shall be called; empty: as it is called where it comes from."""
    build: str = ""
    """`Q4_K_M`, or the name of a file; empty: the best that fits."""
    machines: tuple[MachineMemory, ...] = ()
    """The machines of the fleet, as far as they are known."""
    context: int = 0
    """Tokens; 0: by the settings."""
    directory: Path | None = None
    """The models directory: a file that is in it already stays where it is. None: it is not here."""

    @property
    def memory_bytes(self) -> int:
        """Memory of the machine with the most of it; 0: unknown."""
        return max((machine.usable_bytes for machine in self.machines), default=0)


class GgufBuild(msgspec.Struct, frozen=True, kw_only=True):
    """One model in a repository: a file, or all parts of a split one in their order."""

    name: str
    """As it can be asked for: its quantisation where only one has it, else the name of its file."""
    stem: str
    quantisation: str
    files: tuple[HubFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.size or 0 for file in self.files)

    def is_called(self, name: str) -> bool:
        first = self.files[0]
        names = (self.name, self.stem, self.quantisation, first.name, first.path)
        return name.lower() in {other.lower() for other in names if other}


def quantisation_in(name: str) -> str:
    """Return the quantisation that the name of a file tells, such as Q4_K_M; the last one if it tells several."""
    matches = _QUANTISATION.findall(name)
    word = matches[-1].upper() if matches else ""
    return _SAME.get(word, word)


def without_quantisation(stem: str) -> str:
    """Return the name of a file without the quantisation at its end, and without the number of a part."""
    if split := _SPLIT.fullmatch(stem):
        stem = split["stem"]
    matches = list(_QUANTISATION.finditer(stem))
    if matches and matches[-1].end() == len(stem):
        stem = stem[: matches[-1].start()].rstrip("-._ ") or stem
    return stem


def is_gguf(file: HubFile) -> bool:
    return file.name.lower().endswith(".gguf")


def is_projector(file: HubFile) -> bool:
    return is_gguf(file) and "mmproj" in file.name.lower()


def parts_of(name: str) -> list[str]:
    """Return the names of all parts of a split file, from the name of one of them; only itself if it is not split."""
    split = _SPLIT.fullmatch(name.removesuffix(".gguf"))
    if split is None or not 0 < int(split["number"]) <= (count := int(split["count"])) <= _MOST_PARTS:
        return [name]
    return [f"{split['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def group_builds(files: Iterable[HubFile]) -> tuple[GgufBuild, ...]:
    """Return the models among the files, the largest first. Projectors and matrices of importance are none; neither is
    a split model of which a part is missing."""
    groups: dict[tuple[str, str], dict[str, HubFile]] = defaultdict(dict)
    for file in files:
        if is_gguf(file) and not is_projector(file) and "imatrix" not in file.name.lower():
            groups[file.folder, parts_of(file.name)[0]][file.name] = file
    builds: list[GgufBuild] = []
    for (folder, first), members in groups.items():
        names = parts_of(first)
        if all(name in members for name in names):
            split = _SPLIT.fullmatch(first[: -len(".gguf")])
            stem = split["stem"] if split else first[: -len(".gguf")]
            quantisation = quantisation_in(stem) or quantisation_in(folder)
            parts = tuple(members[name] for name in names)
            builds.append(GgufBuild(name=quantisation, stem=stem, quantisation=quantisation, files=parts))
    builds.sort(key=lambda build: (-build.bytes, build.files[0].path))
    return _with_names(builds)


def _with_names(builds: Sequence[GgufBuild]) -> tuple[GgufBuild, ...]:
    """Give each build a name that no other has: its quantisation, else its file, else its path."""
    for longer in ([build.stem for build in builds], [build.files[0].path for build in builds]):
        names = Counter(build.name for build in builds)
        builds = [
            build if build.name and names[build.name] == 1 else replace(build, name=name)
            for build, name in zip(builds, longer, strict=True)
        ]
    if len({build.name for build in builds}) < len(builds):  # one is called as another's path
        builds = [replace(build, name=build.files[0].path) for build in builds]
    return tuple(builds)


def default_build(builds: Sequence[GgufBuild]) -> GgufBuild:
    """Return what is taken while no machine is known: about four bits, else the largest that is quantised."""
    by_quantisation = {build.quantisation: build for build in reversed(builds)}
    for quantisation in _DEFAULTS:
        if quantisation in by_quantisation:
            return by_quantisation[quantisation]
    return next((build for build in builds if build.quantisation not in _UNQUANTISED), builds[-1])


def choose_build(
    builds: Sequence[GgufBuild], wish: PullWish, needed: Callable[[GgufBuild], int]
) -> tuple[GgufBuild, tuple[str, ...]]:
    """Return the build that is asked for, or else the best that fits, and what to say about it.

    Four bits count as the best: they are nearly as good as more, and answer faster. Where they do not fit, or are not
    offered, the largest that fits is taken; where none fits, the smallest.
    """
    if wish.build:
        return _asked_for(builds, wish.build), ()
    memory = wish.memory_bytes
    if not memory:
        return default_build(builds), ()
    fitting = [build for build in builds if needed(build) <= memory]
    if fitting:
        return default_build(fitting), ()
    smallest = builds[-1]
    need = format_size(needed(smallest))
    note = f"no build fits a machine: {smallest.name} needs about {need}, and the largest has {format_size(memory)}"
    return smallest, (note,)


def _asked_for(builds: Sequence[GgufBuild], name: str) -> GgufBuild:
    matches = [build for build in builds if build.name == name] or [build for build in builds if build.is_called(name)]
    if len(matches) == 1:
        return matches[0]
    names = listed([build.name for build in matches or builds], most=12)
    problem = "fits several builds" if matches else "is not offered"
    raise InvalidInput("build", f"{name[:80]!r} {problem}; there are {names}")


def describe_choices(
    builds: Sequence[GgufBuild], chosen: GgufBuild, wish: PullWish, needed: Callable[[GgufBuild], int]
) -> tuple[BuildChoice, ...]:
    """Return the builds for the person who asks, the largest first."""
    memory = wish.memory_bytes
    return tuple(
        BuildChoice(
            name=build.name,
            bytes=build.bytes,
            files=len(build.files),
            needed_bytes=needed(build),
            fits=needed(build) <= memory if memory else None,
            is_chosen=build is chosen,
        )
        for build in builds
    )


def choose_projector(files: Iterable[HubFile], build: GgufBuild) -> HubFile | None:
    """Return the projector that belongs to a build: beside it, or at the top of the repository; None if none is."""
    folders = (build.files[0].folder, "")
    candidates = [file for file in files if is_projector(file) and file.folder in folders]

    def rank(file: HubFile) -> tuple[bool, int, str]:
        quantisation = quantisation_in(file.name)
        order = _PROJECTORS.index(quantisation) if quantisation in _PROJECTORS else len(_PROJECTORS)
        return file.folder != folders[0], order, file.path

    return min(candidates, key=rank, default=None)


def files_beside(path: str, files: Sequence[HubFile]) -> tuple[HubFile, ...]:
    """Return the files that a path means, with projectors: all of a folder; or one file, with its other parts where it
    is split. Empty if there is neither."""
    named = next((file for file in files if file.path == path), None)
    if named is None:
        inside = [file for file in files if file.path.startswith(f"{path}/")]
        return (*inside, *(file for file in files if inside and is_projector(file) and file not in inside))
    parts = set(parts_of(named.name))
    return tuple(
        file
        for file in files
        if (file.folder == named.folder and file.name in parts) or (is_gguf(named) and is_projector(file))
    )


def directory_files(files: Sequence[HubFile]) -> tuple[HubFile, ...]:
    """Return the files that an engine needs which loads a directory; empty if this is not such a repository."""
    if not any(file.path.endswith(".safetensors") for file in files) or not any(
        file.path == "config.json" for file in files
    ):
        return ()
    return tuple(
        file
        for file in files
        if (file.path.endswith(_NEEDED_ENDINGS) or file.name in _NEEDED_NAMES) and not file.path.startswith(_UNNEEDED)
    )
