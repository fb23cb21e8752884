"""What benches read of processes, and how they ask."""

import os
import sys

import pytest

from bench import frameworks
from bench.client import Connection, request
from bench.readings import ProcessorShare, memory_of
from tests.kit.ports import lasting_port


def test_frameworks_that_cannot_be_installed_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setattr(frameworks, "EXTRA", tmp_path_factory.mktemp("extra"))
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")

    (note,) = frameworks.prepare_extra()

    assert "are left out" in note
    assert not any(contender.is_installed for contender in frameworks.CONTENDERS if contender.is_extra)


def test_the_kernel_says_what_a_process_uses() -> None:
    memory = memory_of(os.getpid())

    assert 0 < memory.proportional <= memory.resident <= memory.peak
    assert ProcessorShare(os.getpid()).percent() >= 0


async def test_a_server_that_hangs_up_is_an_error() -> None:
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on the event loop
        await Connection.open("127.0.0.1", lasting_port())


def test_a_request_states_what_it_carries() -> None:
    message = request("POST", "/api/node/1/heartbeat", bearer="s", body=b"{}")

    assert message.startswith(b"POST /api/node/1/heartbeat HTTP/1.1\r\n")
    assert b"\r\nContent-Length: 2\r\n" in message
    assert message.endswith(b"\r\n\r\n{}")
