"""A real S3 server for tests: private, on loopback, gone with the process that started it."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, Self

from corral.base.errors import ChildFailed
from corral.files.storage import StorageConfig
from tests.kit.ports import lasting_port
from tests.kit.tied import tied

_LOOPBACK: Final = "127.0.0.1"
_START_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05
_GRPC_OFFSET: Final = 1
"""Each part also has a port for gRPC, which otherwise is 10,000 above and out of our range."""
BUCKET: Final = "localai"
ACCESS_KEY: Final = "corral-tests"
SECRET_KEY: Final = "not-much-of-a-secret"


class S3Server:
    """`with S3Server() as server:` gives a running server; its bucket is made with the first object."""

    def __init__(self, *, volumes: int = 20, volume_megabytes: int = 64) -> None:
        """It has room for so many bytes; what is deleted stays there for a while."""
        self._volumes = volumes
        self._volume_megabytes = volume_megabytes
        self._home = Path(tempfile.mkdtemp(prefix="corral-s3-"))
        self._ports = {part: lasting_port() for part in ("master", "volume", "filer", "s3")}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def url(self) -> str:
        return f"http://{_LOOPBACK}:{self._ports['s3']}"

    def config(self) -> StorageConfig:
        return StorageConfig(url=self.url, bucket=BUCKET, access_key=ACCESS_KEY, secret_key=SECRET_KEY, retries=0)

    def start(self) -> None:
        """Start, and return when it answers."""
        identities = [
            {
                "name": "tests",
                "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
                "actions": ["Admin", "Read", "Write", "List", "Tagging"],
            }
        ]
        (self._home / "s3.json").write_text(json.dumps({"identities": identities}))
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                tied(self._command()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.defpath, "HOME": str(self._home), "GOMEMLIMIT": "400MiB"},
                start_new_session=True,
            )
        self._until_it_serves()

    def kill(self) -> None:
        """At once: it would take fifteen seconds to end in good order."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        for port in (*self._ports.values(), *(port - _GRPC_OFFSET for port in self._ports.values())):
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # wherever TMPDIR points
                left.unlink(missing_ok=True)

    def _command(self) -> list[str]:
        ports = [f"-{part}.port={port}" for part, port in self._ports.items()]
        inner = [f"-{part}.port.grpc={port - _GRPC_OFFSET}" for part, port in self._ports.items()]
        return [
            str(Path(sys.executable).parent / "weed"),
            "-logtostderr",
            "server",
            f"-dir={self._home}",
            f"-ip={_LOOPBACK}",
            f"-ip.bind={_LOOPBACK}",
            "-filer",
            "-s3",
            f"-s3.config={self._home / 's3.json'}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.telemetry=false",
            f"-master.volumeSizeLimitMB={self._volume_megabytes}",
            f"-volume.max={self._volumes}",
            *ports,
            *inner,
        ]

    def _until_it_serves(self) -> None:
        """Its port opens before it can store anything, so a volume is asked for."""
        end = time.monotonic() + _START_SECONDS
        while not self._can_store():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > end:
                raise ChildFailed(f"the S3 server did not start: {self._log_tail()}")
            time.sleep(_POLL_SECONDS)

    def _can_store(self) -> bool:
        return self._answers("master", "/dir/assign") == 200 and self._answers("s3", "/") in (200, 403)

    def _answers(self, part: str, path: str) -> int:
        connection = http.client.HTTPConnection(_LOOPBACK, self._ports[part], timeout=30)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    def _log_tail(self) -> str:
        return " | ".join((self._home / "log").read_text(errors="replace").splitlines()[-5:])
