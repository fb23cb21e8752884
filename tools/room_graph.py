"""Prints the graph of rooms that `rooms.map` plans, and every import that would point backwards. Fails if there is one.
A room may import the rooms before it in ROOMS, and routes may import everything."""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SOURCE: Final = Path("src/corral")
MAPPED: Final = ("domain", "state", "control", "admin", "auth")
ROOMS: Final = "store record access nodes operations backends models serving rules diagnosis config api"
ABOVE: Final = ("app", "processes", "cli", "testing", "frontend.app", "frontend.routes")
USED_BY: Final = {
    "decide": "decide",
    "store": "decide store",
    "service": "decide store service",
    "shapes": "decide shapes",
}


def modules() -> dict[str, Path]:
    names = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("corral."):
            package = str(node.module).removeprefix("corral.")
            yield from {one if one in known else package for one in (f"{package}.{name.name}" for name in node.names)}


def kind_of(module: str) -> str:
    """What a module of the frontend is, by its place and its name."""
    room, file = (*module.split(".")[1:], "", "")[:2]
    if file == "doctor" or file.startswith(("routes", "localai")):
        return "routes"
    word = "store" if room == "store" else file.partition("_")[0]
    return word if word in USED_BY else "service"


def problem(importer: str, target: str) -> str:
    """Why an import points backwards; empty when it does not."""
    if importer.startswith("wire."):
        return "" if target.startswith(("wire.", "protocol.", "base.")) else "wire imports what is above it"
    if importer.startswith(ABOVE) or not target.startswith("frontend."):
        return ""
    if not importer.startswith("frontend."):
        return f"{importer.split('.')[0]} -> frontend"
    (room, kind), (other, other_kind) = ((one.split(".")[1], kind_of(one)) for one in (importer, target))
    if kind == "routes":
        return ""
    if other not in ROOMS or ROOMS.find(other) > ROOMS.find(room):
        return f"{room} -> {other}"
    is_allowed = other_kind in USED_BY[kind] and (other_kind != "shapes" or room == other)
    return "" if is_allowed else f"{room}: {kind} -> {other_kind}"


def main() -> int:
    plan = dict(line.split() for line in Path("tools/rooms.map").read_text().splitlines())
    known = modules()
    edges: Counter[tuple[str, ...]] = Counter()
    wrong = [f"not in the map: {one}" for one in known if one.startswith(MAPPED) and one not in plan and "." in one]
    for importer, path in sorted(known.items()):
        for target in imports(path, known):
            ends = plan.get(importer, importer), plan.get(target, target)
            if all(one.startswith("frontend.") for one in ends) and kind_of(ends[0]) != "routes":
                edges[tuple(one.split(".")[1] for one in ends)] += 1
            if why := problem(*ends):
                wrong.append(f"{why}: {importer} imports {target}")
    print(*(f"{room} -> {other}: {count}" for (room, other), count in sorted(edges.items()) if room != other), sep="\n")
    print(*sorted(wrong), f"{len(wrong)} imports point backwards", sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
