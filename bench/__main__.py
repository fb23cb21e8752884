"""`python -m bench [NAME…] [--seconds N] [--json]`: measure, and print tables. Ends with 1 when a goal is missed."""

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from bench import fleet, gateway, readings
from bench.report import Table, as_document, as_text

Bench = Callable[[float | None], Awaitable[list[Table]]]


async def _heartbeats(seconds: float | None) -> list[Table]:
    return await fleet.heartbeats(fleet.Scale() if seconds is None else fleet.Scale(seconds=seconds))


BENCHES: Final[Mapping[str, Bench]] = {"heartbeats": _heartbeats, "gateway": gateway.gateway}
UNASKED: Final = ("heartbeats",)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*BENCHES, []], help=", ".join(BENCHES))
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    tables = asyncio.run(_run(options.names or UNASKED, options.seconds))
    for t in tables:
        print(as_text(t), end="\n\n")
    return 1 if any(table.missed for table in tables) else 0


async def _run(names, seconds):
    return [t for n in names for t in await BENCHES[n](seconds)]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
