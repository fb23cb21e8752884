"""The frontend of `corral up`: how it is started, how it says who its children are, and what it says of the fleet."""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from corral.base.errors import PathNotUsable
from corral.base.private_files import read_private
from corral.base.processes import ChildCommand
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.control.config import CREDENTIALS_FILE
from corral.processes.children import Child
from corral.processes.exit_codes import NOT_WORTH_A_RESTART, ExitCode
from corral.processes.launcher import CONTROL, GATEWAY
from corral.processes.own_program import own_command
from corral.processes.probe import ProbeAnswer, ask, dialled, http_url, until_ok
from corral.processes.up_file import UpKeys
from corral.wire.node_views import NodePage

log = logging.getLogger(__name__)

READY_WITHIN: Final = timedelta(seconds=120)
GRACE: Final = timedelta(seconds=6)
_REPORT_BYTES: Final = 4096


class UpFrontend:
    """Tells `on_change` whenever the pid of control or of a gateway is another one."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        data: Path,
        environment: Callable[[], Mapping[str, str]],
        on_change: Callable[[], None],
    ) -> None:
        self.control_pid: int | None = None
        self._host = dialled(host)
        self.port = port
        self.url = http_url(host, port)
        self.credentials_file = data / CREDENTIALS_FILE
        self._environment = environment
        self._on_change = on_change
        self._reports: int | None = None
        self._gateways: dict[str, int] = {}

    @property
    def gateway_pids(self) -> list[int]:
        """The last known ones: what dies is started again at once."""
        return [pid for _, pid in sorted(self._gateways.items())]

    @property
    def child(self) -> Child:
        return Child(
            name="frontend",
            command=self._command,
            ready=self._until_it_serves,
            ready_within=READY_WITHIN,
            stop_grace=GRACE,
            final_exit_codes=frozenset(NOT_WORTH_A_RESTART - {ExitCode.IN_USE}),
        )

    def credentials(self) -> UpKeys | None:
        """The keys that control keeps for us; None before its first start, or when the file is not ours."""
        try:
            text = read_private(self.credentials_file)
            return None if text is None else msgspec.json.decode(text, type=UpKeys)
        except (PathNotUsable, *UNREADABLE_JSON):
            return None

    async def readiness(self) -> ProbeAnswer | None:
        """What the gateway says of itself, and once that is well, what control does."""
        own = await ask(self._host, self.port, "/readyz")
        return await ask(self._host, self.port, "/api/v1/ready") if own is not None and own.status == 200 else own

    async def nodes(self) -> NodePage | None:
        """The fleet as control sees it; None while it cannot say."""
        keys = self.credentials()
        if keys is None:
            return None
        headers = {"Authorization": f"Bearer {keys.admin}"}
        answer = await ask(self._host, self.port, "/api/v1/nodes?limit=1000", headers)
        if answer is None or answer.status != 200:
            return None
        return msgspec.json.decode(answer.body, type=NodePage)

    def close(self) -> None:
        """Stop listening for reports."""
        if self._reports is not None:
            asyncio.get_running_loop().remove_reader(self._reports)
            os.close(self._reports)
            self._reports = None

    def _command(self) -> ChildCommand:
        self.close()
        self._reports, writer = os.pipe()
        os.set_blocking(self._reports, False)
        asyncio.get_running_loop().add_reader(self._reports, self._read_report)
        argv = own_command("frontend", "--report-descriptor", str(writer))
        environment = {**self._environment(), "CORRAL_CREDENTIALS_FILE": str(self.credentials_file)}
        return ChildCommand(argv=argv, env=environment, handed_over=[writer])

    async def _until_it_serves(self) -> None:
        await until_ok(self._host, self.port, "/healthz")

    def _read_report(self) -> None:
        """A few short lines at most: a pipe carries them whole."""
        if self._reports is None:
            return
        data = os.read(self._reports, _REPORT_BYTES)
        if not data:
            self.close()
            return
        pids: dict[str, int] = json.loads(data.splitlines()[-1])
        control = pids.get(CONTROL, self.control_pid)
        gateways = {name: pid for name, pid in pids.items() if name.startswith(GATEWAY)}
        changed = control != self.control_pid or not gateways.items() <= self._gateways.items()
        self.control_pid = control
        self._gateways |= gateways
        if changed:
            self._on_change()
