"""Tiny wheels and the locks that pin them, so that builds in tests need no network."""

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ANY: Final = "py3-none-any"


def a_wheel(
    folder: Path, name: str, *, tag: str = ANY, files: Mapping[str, str] | None = None, script: str = ""
) -> Path:
    """Version 1.0 of a package, for the platforms of the tag; with `script` it brings a command of that name."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{name}-1.0.dist-info"
    content = {
        f"{name}/__init__.py": f'NAME = "{name}"\n',
        **(files or {}),
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{about}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    if script:
        content[f"{about}/entry_points.txt"] = f"[console_scripts]\n{script} = {name}:main\n"
    content[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in (*content, f"{about}/RECORD"))
    wheel = folder / f"{name}-1.0-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in content.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), text)
    return wheel


def lock_of(wheels: Sequence[Path]) -> str:
    """What `uv pip compile --generate-hashes` would write about them."""
    hashes: dict[str, list[str]] = {}
    for wheel in wheels:
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        hashes.setdefault(wheel.name.partition("-")[0], []).append(f"    --hash=sha256:{digest}")
    return "".join(f"{name}==1.0 \\\n" + " \\\n".join(lines) + "\n" for name, lines in hashes.items())
