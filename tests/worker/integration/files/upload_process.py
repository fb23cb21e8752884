"""Runs a file server in a process of its own, below the folder that is given; says which port it has."""

import asyncio
import sys
from pathlib import Path

from tests.kit.file_worker import open_file_worker


async def main() -> None:
    async with open_file_worker(Path(sys.argv[1])) as worker:
        sys.stdout.write(f"{worker.port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
