"""Which files a backend may read, run and write: the lists that Landlock is given for one process.

Nothing on them holds the worker's own directory, or a fleet's around it: of a system directory above it the other
entries are given, and anything else that leads there is left out.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from corral.worker.confinement.config import ConfinementConfig
from corral.worker.confinement.landlock import FileAccess
from corral.worker.confinement.machine import PLAIN_DEVICES, gpu_devices
from corral.worker.confinement.shared_memory import SHARED_MEMORY
from corral.worker.processes.process import Launch

_SYSTEM: Final = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/run/opengl-driver")
_READABLE: Final = (
    "/proc",
    "/sys",
    "/run/nvidia-persistenced",
    "/run/systemd/resolve",
    "/run/localai",
    *(
        f"/etc/{name}"
        for name in (
            *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "localtime", "timezone", "os-release"),
            *("passwd", "group", "nsswitch.conf", "hosts", "hostname", "host.conf", "resolv.conf", "gai.conf"),
            *("services", "protocols", "machine-id", "mime.types", "locale.alias", "locale.conf", "fonts"),
            *("ssl/certs", "ssl/openssl.cnf", "ssl/cert.pem", "pki/tls/certs", "pki/ca-trust/extracted"),
            *("ca-certificates", "OpenCL", "vulkan", "glvnd", "alternatives", "nvidia", "nv_tegra_release", "python3"),
        )
    ),
)
_CACHES: Final = (
    *("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME"),
    *("TRITON_CACHE_DIR", "CUDA_CACHE_PATH"),
)
"""Variables that name directories for caches. Setting one for the worker means that backends may write there."""
_READ_BY_NAME: Final = ("PYTHONPATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables that name files and directories, separated by colons. Backends inherit them, and must be able to read
what they name."""
_MOST_LINKS: Final = 2000
_PYTHONS: Final = ("CORRAL_BACKEND_PYTHON", "CORRAL_WORKER_PYTHON")
_PARTS_OF_PYTHON: Final = ("bin", "lib", "lib64", "lib32", "libexec", "include", "pyvenv.cfg")
_PYTHON_NAMES: Final = ("python3", "python")
_MARKS_OF_PYTHON: Final = ("pyvenv.cfg", "conda-meta")
"""What only a directory has that was made for an interpreter and nothing else."""
_NAMED_PATH: Final = re.compile(r"(?<![\w$(){}./~-])/[\w.+@/-]+")
_MOST_OF_SCRIPT: Final = 64 * 1024
_SHARED_FOLDERS: Final = frozenset({Path("/var/tmp"), Path("/dev/shm")})  # noqa: S108 - recognised, not used
"""Directories in which files of different people lie beside each other, beyond those directly below the root."""


class BackendPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Directories of this worker that concern backends."""

    data: Path
    """The worker's own data directory."""
    models: Sequence[Path]
    exchanged: Sequence[Path] = ()
    """Where a LocalAI frontend has backends read and write files of requests."""
    runtimes: Sequence[Path] = (Path(sys.prefix), Path(sys.base_prefix))
    """Where the interpreter is that backends may use."""

    @property
    def scratch(self) -> Path:
        return self.data / "scratch"


def granted_files(
    launch: Launch, *, places: BackendPlaces, config: ConfinementConfig, exchanged: Sequence[Path] = ()
) -> FileAccess:
    """Decide the lists for one process. Looks at the disk."""
    data = Path(os.path.realpath(places.data))
    models = [part for folder in places.models for part in around_data(folder, data)]
    linked = [path for path in _link_targets(places.models) if not holds(path, data)]
    pythons = [*map(_prefixes_of, filter(None, map(launch.environment.get, _PYTHONS))), places.runtimes]
    runtimes = [part for prefixes in pythons for prefix in prefixes for part in runtime_parts(prefix, data)]
    beside = [*(_beside(launch.home.directory, data) if launch.home.is_system else ()), *_placed(launch, data)]
    named = _outside(_named_files(launch.environment), data)
    more = [*config.read_paths, *_library_paths(launch.environment)]
    programs = _search_path(launch.environment, data)
    caches = [Path(value) for name in _CACHES if (value := launch.environment.get(name, "")).startswith("/")]
    write = [*config.write_paths, *exchanged, *caches]
    system = [part for name in _SYSTEM for part in around_data(Path(name), data)]
    return FileAccess(
        read=[*_READABLE, *_real([*models, *linked, *named])],
        run=_real([*system, launch.home.directory, *beside, *runtimes, *programs, *_outside(more, data)]),
        write=[SHARED_MEMORY, *_real([*filter(None, [launch.scratch, launch.kept_home]), *_outside(write, data)])],
        devices=[*(f"/dev/{name}" for name in PLAIN_DEVICES), *map(str, gpu_devices())],
    )


def left_out(places: BackendPlaces, config: ConfinementConfig) -> list[str]:
    """Sentences about settings that backends are not given."""
    data = Path(os.path.realpath(places.data))
    settings = {"backend_read_paths": config.read_paths, "backend_write_paths": config.write_paths}
    return [
        f"{path} of {name} is not given to backends, because the worker's own files are in it: name directories in it"
        for name, paths in settings.items()
        for path in paths
        if holds(path, data)
    ]


def holds(path: Path, data: Path) -> bool:
    """Whether a path is the worker's own directory, or has it somewhere inside."""
    return data.is_relative_to(os.path.realpath(path))


def around_data(folder: Path, data: Path) -> Iterator[Path]:
    """Yield the folder; where the worker's directory is inside, what is beside the way to it.

    The directory that the worker's is in is a fleet's, as `corral up` has it, so nothing of it is given, unless it is
    the folder itself.
    """
    real = Path(os.path.realpath(folder))
    if not holds(real, data):
        yield folder
        return
    for place in (real, *(way for way in reversed(data.parents[1:]) if way.is_relative_to(real) and way != real)):
        if place == data or not place.is_dir():
            return
        yield from (entry for entry in place.iterdir() if not data.is_relative_to(os.path.realpath(entry)))


def runtime_parts(prefix: Path, data: Path) -> list[Path]:
    """The directory of an interpreter; of one that has other things in it as well, the parts that it uses."""
    real = Path(os.path.realpath(prefix))
    shared = {Path("/"), Path.home(), Path.home() / ".local"}
    is_its_own = any((real / mark).exists() for mark in _MARKS_OF_PYTHON) or real not in shared
    if is_its_own and not holds(real, data):
        return [prefix]
    return _outside([prefix / part for part in _PARTS_OF_PYTHON], data)


def _prefixes_of(python: str) -> list[Path]:
    """Directories of an interpreter: of its virtual environment, and of the program that its link leads to."""
    named, real = Path(os.path.abspath(python)), Path(os.path.realpath(python))
    return [named.parent.parent, real.parent.parent]


def _outside(paths: Iterable[Path], data: Path) -> list[Path]:
    return [path for path in paths if not holds(path, data)]


def _real(paths: Iterable[Path]) -> list[str]:
    """Return the path, and the path that its links lead to if that differs."""
    return list(dict.fromkeys(name for path in paths for name in (os.path.abspath(path), os.path.realpath(path))))


def _library_paths(environment: Mapping[str, str]) -> list[Path]:
    return [Path(part) for part in environment.get("LD_LIBRARY_PATH", "").split(":") if part.startswith("/")]


def _named_files(environment: Mapping[str, str]) -> list[Path]:
    values = (environment.get(name, "") for name in _READ_BY_NAME)
    return [Path(part) for value in values for part in value.split(":") if part.startswith("/")]


def _search_path(environment: Mapping[str, str], data: Path) -> list[Path]:
    """The directories of programs that a backend inherits, with the interpreters in them: a virtual environment in
    which the worker was started, for example."""
    parts = [Path(part) for part in environment.get("PATH", "").split(":") if part.startswith("/")]
    folders = [folder for folder in parts if not _is_shared(folder)]
    pythons = [python for folder in folders for name in _PYTHON_NAMES if (python := folder / name).is_file()]
    return [*_elsewhere(folders, data), *_runtimes_of(pythons, data)]


def _runtimes_of(pythons: Iterable[Path], data: Path) -> list[Path]:
    prefixes = [prefix for python in pythons for prefix in _prefixes_of(str(python))]
    return _elsewhere((part for prefix in prefixes for part in runtime_parts(prefix, data)), data)


def _placed(launch: Launch, data: Path) -> list[Path]:
    """What a backend uses outside of its directory that a person placed there, in the system's directory or by hand:
    what the links directly in it lead to, the programs that its start script names, and modules of Python with those
    beside them. Of the worker's own directory that is only what is beside the backend."""
    if not (launch.home.is_placed or launch.home.is_system):
        return []
    home = launch.home.directory
    named = [Path(name) for name in _NAMED_PATH.findall(_start_of(launch.home.executable))]
    programs = [path for path in named if path.is_file() and (path.suffix == ".py" or os.access(path, os.X_OK))]
    modules = [path.parent for path in programs if path.suffix == ".py" and not _is_shared(path.parent)]
    links = [entry for entry in home.iterdir() if entry.is_symlink()]
    pythons = [path for path in programs if path.name.startswith("python")]
    backends = Path(os.path.realpath(home.parent))
    real = [Path(os.path.realpath(path)) for path in (*links, *programs, *modules)]
    beside = [path for path in real if backends in path.parents]
    away = [path for path in _elsewhere(real, data) if not backends.is_relative_to(path)]
    return [*beside, *away, *_runtimes_of(pythons, data)]


def _start_of(script: Path) -> str:
    with script.open("rb") as file:
        return file.read(_MOST_OF_SCRIPT).decode(errors="replace")


def _is_shared(folder: Path) -> bool:
    """Whether other things than programs, or than those of one program, lie in a directory."""
    return len(folder.parts) <= 2 or folder in _SHARED_FOLDERS or Path.home().is_relative_to(folder)


def _elsewhere(paths: Iterable[Path], data: Path) -> list[Path]:
    """The paths that neither lie in the worker's own directory nor hold it."""
    return [path for path in _outside(paths, data) if not Path(os.path.realpath(path)).is_relative_to(data)]


def _beside(home: Path, data: Path) -> list[Path]:
    """What a backend of the system uses outside of its directory: the SDK, and what its links lead to.

    Links in the directory of an image are not followed: they would let their author choose what is read.
    """
    python = home / "venv" / "bin" / "python"
    links = [entry for entry in home.iterdir() if entry.is_symlink()]
    runtime = runtime_parts(python.resolve().parent.parent, data) if python.exists() else []
    return [*_outside([home.parent / "sdk", *links], data), *runtime]


def _link_targets(folders: Sequence[Path]) -> Iterator[Path]:
    """What links in these directories lead to, outside of them: people keep models on other disks. Bounded."""
    remaining = _MOST_LINKS
    for folder in folders:
        real = os.path.realpath(folder)
        for place, names, files in os.walk(real):
            for name in (*names, *files):
                path = os.path.join(place, name)
                remaining -= 1
                if remaining < 0:
                    return
                if os.path.islink(path) and not (target := os.path.realpath(path)).startswith(f"{real}/"):
                    yield Path(target)
