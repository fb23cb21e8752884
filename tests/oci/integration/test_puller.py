"""The puller as a process: what it tells, how it ends, what it leaves."""

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import psutil
import pytest

from corral.base.processes import secret_descriptor
from corral.oci.auth import Credential
from corral.oci.errors import (
    ImageNotFound,
    PullCancelled,
    PullerDied,
    RegistryRefused,
    RegistryUnavailable,
    TargetUnusable,
    UnpackRefused,
)
from corral.oci.limits import Network
from corral.oci.manifests import this_platform
from corral.oci.orders import PullOrder, PullProgress
from corral.oci.puller import MODULE, Puller
from tests.kit.certificates import Authority
from tests.kit.images import a_layer, a_symlink, gzipped, tar_of
from tests.kit.inspection import environment_text
from tests.kit.registry import FakeRegistry, answering, cutting, stalling
from tests.kit.waiting import wait_until, within_timeout

NAME = "backends/echo"
BIG = a_layer({"weights": os.urandom(900_000)})
SMALL = a_layer({"run.sh": b"#!/bin/sh\n"})
ENVIRONMENT = {"PATH": os.defpath, "HOME": "/nonexistent", "SECRET_OF_OTHERS": "x"}


@pytest.fixture
async def registry() -> AsyncIterator[FakeRegistry]:
    async with FakeRegistry(username="me", password="secret-word") as registry:
        yield registry


class Orders:
    def __init__(self, registry: FakeRegistry, folder: Path) -> None:
        self.target, self.cache = folder / "target", folder / "cache"
        self._registry = registry

    def order(self, **changes: object) -> PullOrder:
        login = Credential(place=self._registry.address, username="me", password="secret-word")
        order = PullOrder(
            sources=(self._registry.reference(NAME),),
            target=str(self.target),
            cache=str(self.cache),
            platform=this_platform(),
            credentials=(login,),
            network=Network(first_pause_seconds=0.01),
        )
        return msgspec.structs.replace(order, **changes)

    def cached(self) -> list[str]:
        return sorted(path.name for path in self.cache.glob("*"))


@pytest.fixture
def orders(registry: FakeRegistry, tmp_path: Path) -> Orders:
    return Orders(registry, tmp_path)


async def test_a_pull_from_beginning_to_end(registry: FakeRegistry, orders: Orders) -> None:
    image = registry.add_image(NAME, [SMALL, BIG])
    registry.faults[image.digest] += [cutting(100_000)]
    seen: list[PullProgress] = []

    async with Puller(orders.order(), environment=ENVIRONMENT) as puller:
        async for progress in puller.progress():
            seen.append(progress)
        result = await puller.result()

    assert result.digest == image.digest
    assert sorted(path.name for path in orders.target.iterdir()) == ["run.sh", "weights"]
    assert orders.cached() == []
    assert [one.percentage for one in seen] == sorted(one.percentage for one in seen)
    assert [one.sequence for one in seen] == sorted({one.sequence for one in seen})
    assert (seen[-1].phase, seen[-1].percentage) == ("verifying", 100.0)


async def test_an_error_in_the_puller_is_one_here(registry: FakeRegistry, orders: Orders) -> None:
    async with Puller(orders.order(), environment=ENVIRONMENT) as puller:
        with pytest.raises(ImageNotFound, match="answered 404"):
            await puller.result()
    assert not orders.target.exists()

    registry.add_image(NAME, [gzipped(tar_of(a_symlink("out", "..")))])
    async with Puller(orders.order(), environment=ENVIRONMENT) as puller:
        with pytest.raises(UnpackRefused):
            await puller.result()

    registry.faults["/manifests/"] += [answering(500)] * 9
    async with Puller(orders.order(), environment=ENVIRONMENT) as puller:
        with pytest.raises(RegistryUnavailable) as caught:
            await puller.result()
    assert caught.value.retryable
    assert not orders.target.exists()


async def test_no_secret_is_in_the_process_list(registry: FakeRegistry, orders: Orders) -> None:
    registry.add_image(NAME, [BIG])
    reached, never = asyncio.Event(), asyncio.Event()
    registry.faults["/blobs/"].append(stalling(1000, never, reached=reached))

    async with Puller(orders.order(), environment=ENVIRONMENT) as puller:
        await within_timeout(reached.wait(), lambda: "the layer")
        process = psutil.Process(puller.pid)
        shown = " ".join(process.cmdline()) + environment_text(process.pid)
        assert "secret-word" not in shown
        assert "SECRET_OF_OTHERS" not in shown
    never.set()


async def test_it_stands_back_behind_what_serves(registry: FakeRegistry, orders: Orders) -> None:
    registry.add_image(NAME, [BIG])
    reached, never = asyncio.Event(), asyncio.Event()
    registry.faults["/blobs/"].append(stalling(1000, never, reached=reached))

    async with Puller(orders.order(), environment=ENVIRONMENT) as puller:
        await within_timeout(reached.wait(), lambda: "the layer")
        assert puller.pid is not None
        process = psutil.Process(puller.pid)
        assert process.nice() == min(os.nice(0) + 10, 19)
        assert process.ionice().value == 7
        assert os.sched_getscheduler(puller.pid) == os.SCHED_BATCH
        assert autogroup_niceness(puller.pid) in (None, 10)
    never.set()


def autogroup_niceness(pid: int) -> int | None:
    """Of its whole session, against others; None from kernels that do not group processes by session."""
    try:
        return int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])
    except (OSError, IndexError):
        return None


async def test_cancelling_leaves_only_what_can_be_gone_on_with(registry: FakeRegistry, orders: Orders) -> None:
    registry.add_image(NAME, [SMALL, BIG])
    small, big = (digest.partition(":")[2] for digest in registry.blobs)
    reached, never = asyncio.Event(), asyncio.Event()
    registry.faults[big].append(stalling(500_000, never, reached=reached))
    puller = Puller(orders.order(), environment=ENVIRONMENT)
    async with puller:
        await within_timeout(reached.wait(), lambda: "the layer")
        async for progress in puller.progress():
            if progress.current_bytes > 400_000:
                break

        await puller.cancel()

        with pytest.raises(PullCancelled):
            await puller.result()
    never.set()
    assert not orders.target.exists()
    assert orders.cached() == sorted([small, f"{big}.part"])
    held = (orders.cache / f"{big}.part").stat().st_size
    assert 300_000 < held <= 500_000, "as much as had come by then"
    registry.heard.clear()

    async with Puller(orders.order(), environment=ENVIRONMENT) as again:
        await again.result()

    assert [one.range for one in registry.asked_for("/blobs/") if "Authorization" in one.headers] == [f"bytes={held}-"]


async def test_leaving_the_block_ends_the_pull(registry: FakeRegistry, orders: Orders) -> None:
    registry.add_image(NAME, [BIG])
    reached, never = asyncio.Event(), asyncio.Event()
    registry.faults["/blobs/"].append(stalling(1000, never, reached=reached))

    async with Puller(orders.order(), environment=ENVIRONMENT) as puller:
        await within_timeout(reached.wait(), lambda: "the layer")
        pid = puller.pid

    never.set()
    assert pid is not None
    assert not psutil.pid_exists(pid)
    assert not orders.target.exists()


async def test_a_puller_that_is_killed_is_worth_another_try(registry: FakeRegistry, orders: Orders) -> None:
    registry.add_image(NAME, [BIG])
    reached, never = asyncio.Event(), asyncio.Event()
    registry.faults["/blobs/"].append(stalling(1000, never, reached=reached))

    async with Puller(orders.order(), environment=ENVIRONMENT) as puller:
        await within_timeout(reached.wait(), lambda: "the layer")
        assert puller.pid is not None
        os.kill(puller.pid, signal.SIGKILL)

        with pytest.raises(PullerDied, match="signal 9") as caught:
            await puller.result()

    never.set()
    assert caught.value.retryable
    assert not orders.target.exists()


async def test_a_target_that_was_there_is_given_back(registry: FakeRegistry, orders: Orders) -> None:
    registry.add_image(NAME, [SMALL, BIG])
    reached, never = asyncio.Event(), asyncio.Event()
    registry.faults[list(registry.blobs)[1]].append(stalling(1000, never, reached=reached))
    orders.target.mkdir()

    async with Puller(orders.order(), environment=ENVIRONMENT) as puller:
        await within_timeout(reached.wait(), lambda: "the layer")
        assert puller.pid is not None
        os.kill(puller.pid, signal.SIGKILL)
        with pytest.raises(PullerDied):
            await puller.result()
    never.set()
    assert list(orders.target.iterdir()) == []

    (orders.target / "precious").touch()
    async with Puller(orders.order(), environment=ENVIRONMENT) as puller:
        with pytest.raises(TargetUnusable, match="is not empty"):
            await puller.result()
    assert (orders.target / "precious").exists()


async def test_certificates_are_checked(orders: Orders, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.issue("registry")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    async with FakeRegistry(tls=tls) as secure:
        secure.blobs["/files/echo.tar.gz"] = SMALL
        order = orders.order(sources=(f"https://{secure.address}/files/echo.tar.gz",))

        async with Puller(order, environment=ENVIRONMENT) as puller:
            with pytest.raises(RegistryRefused, match="its certificate is not trusted"):
                await puller.result()
        trusting = {**ENVIRONMENT, "SSL_CERT_FILE": str(authority.file)}
        async with Puller(order, environment=trusting) as puller:
            await puller.result()

    assert (orders.target / "run.sh").exists()


PARENT = """
import asyncio, sys
import msgspec
from corral.oci.orders import PullOrder
from corral.oci.puller import Puller

async def main():
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=PullOrder)
    async with Puller(order, environment={}) as puller:
        print(puller.pid, flush=True)
        await puller.result()

asyncio.run(main())
"""


async def test_it_dies_with_its_parent(registry: FakeRegistry, orders: Orders) -> None:
    registry.add_image(NAME, [BIG])
    reached, never = asyncio.Event(), asyncio.Event()
    registry.faults["/blobs/"].append(stalling(1000, never, reached=reached))
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(msgspec.json.encode(orders.order()))
    parent.stdin.close()
    pid = int(await within_timeout(parent.stdout.readline(), lambda: "the puller's process id"))
    await within_timeout(reached.wait(), lambda: "the layer")

    parent.kill()
    await parent.wait()

    await asyncio.to_thread(wait_until, lambda: not psutil.pid_exists(pid), "the end of the puller")
    never.set()


async def test_its_output_is_lines_that_anybody_can_read(registry: FakeRegistry, orders: Orders) -> None:
    registry.add_image(NAME, [SMALL])
    descriptor = secret_descriptor(msgspec.json.encode(orders.order()))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", MODULE, "--order", str(descriptor)), stdout=subprocess.PIPE, pass_fds=[descriptor]
    )
    os.close(descriptor)

    output, _ = await within_timeout(process.communicate(), lambda: "the puller")

    lines = [json.loads(line) for line in output.splitlines()]
    assert process.returncode == 0
    assert {line["type"] for line in lines[:-1]} == {"progress"}
    assert lines[-1]["type"] == "done"
    assert lines[-1]["size_bytes"] == 10
