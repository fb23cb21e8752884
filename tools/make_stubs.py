"""Writes the Python stubs of proto/backend.proto: for Corral itself, and the same again for the SDK of the backends.

The stubs are committed, so that running Corral takes no compiler. Nobody edits them; a test notices when they are old.

    python tools/make_stubs.py [--check]
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
HOMES = (ROOT / "src/corral/rpc/_generated", ROOT / "backends/sdk/corral_backend_sdk/_generated")
PACKAGE_TEXT = '"""Written by `make proto` from proto/backend.proto."""\n'


def compile_proto(target: Path) -> None:
    """Compiled by its bare name: so the copies are alike, and one process may import both."""
    well_known = str(resources.files("grpc_tools") / "_proto")
    words = [f"-I{PROTO}", f"-I{well_known}", f"--python_out={target}", f"--pyi_out={target}", "backend.proto"]
    if protoc.main(["protoc", *words]) != 0:
        raise SystemExit("proto/backend.proto does not compile: see above.")
    (target / "__init__.py").write_text(PACKAGE_TEXT, encoding="utf-8")


def stale(fresh: Path) -> Iterator[Path]:
    for home in HOMES:
        for file in sorted(fresh.iterdir()):
            there = home / file.name
            if not there.is_file() or there.read_bytes() != file.read_bytes():
                yield there


def main(words: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        compile_proto(fresh)
        old = list(stale(fresh))
        if "--check" in words:
            for file in old:
                print(f"{file.relative_to(ROOT)} does not fit proto/backend.proto: run `make proto`")
            return 1 if old else 0
        for file in old:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes((fresh / file.name).read_bytes())
            print(f"wrote {file.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
