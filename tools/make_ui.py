"""Builds the page from `ui/` into src/corral/frontend/api/static/ui, where control finds it. Needs `.build`'s Node.

    python tools/make_ui.py            write the types of the API, check them and the source, build
    python tools/make_ui.py --check    say whether what is committed is what the source builds
    python tools/make_ui.py --dev      serve the source with hot reload, in front of a fleet that runs

What is built is committed, so that running Corral takes no Node. A record beside it holds the digest of the source and
that of the files: the check builds only where the source differs from the record, and always where CI is set.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from environment.checkout import Checkout
from environment.node import node_environment, node_program

from corral.base.errors import CorralError
from corral.cli.connection import target_of
from corral.frontend.api.description import describe
from corral.frontend.routes import ROUTES
from corral.processes.settings import ClientSettings, gather
from corral.processes.settings_sources import resolve

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "ui"
BUILT: Final = ROOT / "src/corral/frontend/api/static/ui"
TYPES: Final = SOURCE / "src/api/schema.gen.ts"
RECORD: Final = "BUILD.json"
NOT_SOURCE: Final = frozenset({"node_modules", ".vite"})
OURS: Final = ("/api/v1/", "/readyz", "/healthz")
"""Paths that the page may call; for others it has no types."""
TYPES_HEAD: Final = "// Made by `make ui` from the list of routes; changes belong there. Description: {digest}\n"


def main(words: Sequence[str]) -> int:
    if "--dev" in words:
        return serve()
    if "--check" in words:
        return check()
    install()
    write_types()
    judge()
    build(BUILT)
    write_record()
    print(f"built {BUILT.relative_to(ROOT)}: {size_of(BUILT)}")
    return 0


def check() -> int:
    findings = list(stale_parts())
    for finding in findings:
        print(f"{finding}: run `make ui`")
    return 1 if findings else 0


def stale_parts() -> Iterator[str]:
    if digest_of_description() not in first_line(TYPES):
        yield f"{TYPES.relative_to(ROOT)} does not fit the routes"
        return
    record = read_record()
    if record.get("files") != digest_of(built_files(BUILT), BUILT):
        yield f"{BUILT.relative_to(ROOT)} is not what was built"
        return
    if record.get("sources") == digest_of(source_files(), SOURCE) and not os.environ.get("CI"):
        return
    install()
    judge()
    with tempfile.TemporaryDirectory(dir=ROOT / ".build") as folder:
        fresh = Path(folder) / "ui"
        build(fresh)
        if digest_of(built_files(fresh), fresh) != record.get("files"):
            yield f"{BUILT.relative_to(ROOT)} does not fit ui/"


def judge() -> None:
    """Types, style and tests of the source."""
    for script in (["tsc", "--noEmit"], ["biome", "check", "."], ["vitest", "run", "--reporter=dot"]):
        run(*script)


def install() -> None:
    """Have the bootstrap get Node and the packages of the lock; what is there already costs nothing."""
    command = [sys.executable, str(ROOT / "tools/bootstrap.py"), "setup", "--dev", "--ui"]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit("The page cannot be built without Node: see above.")


def serve() -> int:
    """Vite with hot reload; it passes the API on to CORRAL_URL, or to the fleet of `corral up` on this machine."""
    install()
    command, environment = command_of("vite"), page_environment()
    environment["CORRAL_URL"] = running_fleet()
    os.chdir(SOURCE)
    os.execve(command[0], command, environment)


def running_fleet() -> str:
    """The frontend that commands of this machine talk to: CORRAL_URL, or the one that `corral up` left in `up.json`."""
    try:
        return target_of(resolve(ClientSettings, gather({}))).url
    except CorralError as error:
        raise SystemExit(str(error)) from None


def write_types() -> None:
    """TypeScript of the API's description. Its digest is in the first line, so that a check takes no Node."""
    with tempfile.TemporaryDirectory() as folder:
        described = Path(folder) / "openapi.json"
        described.write_text(json.dumps(description()))
        run("openapi-typescript", str(described), "-o", str(TYPES), "--silent")
    head = TYPES_HEAD.format(digest=digest_of_description())
    TYPES.write_text(head + TYPES.read_text())


def description() -> dict[str, Any]:
    """The routes that the page calls; without the version of Corral, which would make each release another page."""
    whole = describe([route for route in ROUTES if route.path.startswith(OURS)])
    whole["info"] = {"title": "Corral", "version": ""}
    return whole


def digest_of_description() -> str:
    return hashlib.sha256(json.dumps(description(), sort_keys=True).encode()).hexdigest()[:16]


def build(target: Path) -> None:
    run("vite", "build", "--outDir", str(target), "--emptyOutDir", "--logLevel", "warn")


def run(*words: str) -> None:
    result = subprocess.run(command_of(*words), cwd=SOURCE, env=page_environment(), check=False)
    if result.returncode != 0:
        raise SystemExit(f"{words[0]} failed: see above.")


def command_of(program: str, *words: str) -> list[str]:
    """A program of the packages, run by our Node whatever its first line says."""
    node = str(node_program(Checkout(ROOT)))
    script = SOURCE / "node_modules" / ".bin" / program
    return [node, str(script.resolve()), *words]


def page_environment() -> dict[str, str]:
    return node_environment(Checkout(ROOT))


def write_record() -> None:
    record = {"sources": digest_of(source_files(), SOURCE), "files": digest_of(built_files(BUILT), BUILT)}
    (BUILT / RECORD).write_text(json.dumps(record, indent=1) + "\n")


def read_record() -> dict[str, str]:
    try:
        record: dict[str, str] = json.loads((BUILT / RECORD).read_text())
    except (OSError, ValueError):
        return {}
    return record


def source_files() -> Iterator[Path]:
    for path in SOURCE.rglob("*"):
        if path.is_file() and not NOT_SOURCE & set(path.relative_to(SOURCE).parts):
            yield path


def built_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and path.name != RECORD)


def digest_of(files: Iterable[Path], folder: Path) -> str:
    whole = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes()
        name = path.relative_to(folder).as_posix().encode()
        whole.update(b"%d %b %d " % (len(name), name, len(content)) + content)
    return whole.hexdigest()[:32]


def first_line(path: Path) -> str:
    return path.read_text().partition("\n")[0] if path.is_file() else ""


def size_of(folder: Path) -> str:
    total = sum(path.stat().st_size for path in built_files(folder))
    return f"{total / 1024:.0f} KiB in {sum(1 for _ in built_files(folder))} files"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
