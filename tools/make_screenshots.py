"""Takes pictures of every page of a fleet made for it, into docs/images. Needs the browser of `make setup`.

    python tools/make_screenshots.py            all of them
    python tools/make_screenshots.py WORD …     those whose name has one of these words
    … --looks FOLDER                            also as PNG files, there
    … --into FOLDER                             somewhere else than docs/images

The fleet is real where it matters (a frontend, two workers, a model that answers) and simulated where it is large.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGES: Final = ROOT / "docs" / "images"
MOST_BYTES: Final = 3_000_000
"""Of all pictures together."""

sys.path.insert(0, str(ROOT))  # the testing kit, which is no package that is installed

from screenshots.camera import Camera  # noqa: E402
from screenshots.fleet import picture_fleet  # noqa: E402
from screenshots.tour import Tour  # noqa: E402

from tests.kit.browser import open_browser  # noqa: E402


def main() -> int:
    asked = _arguments()
    for folder in (asked.into, asked.looks):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="corral-pictures-") as home,
        picture_fleet(Path(home)) as fleet,
        open_browser() as browser,
    ):
        camera = Camera(browser, asked.into, asked.words, asked.looks)
        tour = Tour(camera, fleet)
        tour.go()
    for missed in tour.missed:
        print(missed, file=sys.stderr)
    if not (asked.words or tour.missed):
        for picture in asked.into.glob("*.webp"):
            if picture.stem not in camera.taken:
                picture.unlink()
    size = sum(picture.stat().st_size for picture in asked.into.glob("*.webp"))
    print(f"{len(camera.taken)} pictures; all of {asked.into.name} has {size / 1e6:.1f} MB")
    if size > MOST_BYTES:
        print(f"That is more than {MOST_BYTES / 1e6:.0f} MB: take fewer, or smaller ones.", file=sys.stderr)
        return 1
    return 1 if tour.missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Take pictures of the web page.")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only those whose name has one of these words")
    parser.add_argument("--into", type=Path, default=IMAGES, help="folder of the pictures (docs/images)")
    parser.add_argument("--looks", type=Path, help="folder for PNG files besides")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
