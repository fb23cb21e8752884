"""A real registry for tests, Debian's docker-registry: private, on loopback, gone with the test that started it."""

import base64
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

import msgspec

from corral.base.errors import ChildFailed
from corral.oci.manifests import OCI_CONFIG, OCI_INDEX, OCI_LAYER_GZIP, OCI_MANIFEST, Descriptor, ImagePlatform
from corral.oci.references import digest_of
from tests.kit.ports import lasting_port
from tests.kit.tied import tied

_LOOPBACK: Final = "127.0.0.1"
_START_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.02
_FETCHED: Final = Path(__file__).absolute().parents[2] / ".build" / "programs" / "docker-registry"

USERNAME: Final = "tests"
PASSWORD: Final = "not-much-of-a-secret"
_PASSWORD_FILE: Final = f"{USERNAME}:$2b$04$abcdefghijklmnopqrstuuG4bRUcIyHNBmxAYFgg78HFXTES3W9tq\n"


def find_program() -> str:
    """The system's own, or the one that `make setup` fetched."""
    program = shutil.which("docker-registry") or (str(_FETCHED) if _FETCHED.exists() else "")
    if not program:
        raise ChildFailed("there is no docker-registry: install Debian's package, or run `make setup` with a network")
    return program


class DockerRegistry:
    """`with DockerRegistry() as registry:` gives a running one; with `needs_login` it knows one user."""

    def __init__(self, *, needs_login: bool = False) -> None:
        self._needs_login = needs_login
        self._home = Path(tempfile.mkdtemp(prefix="corral-registry-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"{_LOOPBACK}:{lasting_port()}"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        shutil.rmtree(self._home, ignore_errors=True)

    def reference(self, name: str, tag: str = "latest") -> str:
        return f"{self.address}/{name}:{tag}"

    # What is pushed to it.

    def push_image(
        self, name: str, layers: Sequence[bytes], *, platform: ImagePlatform, tag: str = "latest"
    ) -> Descriptor:
        pushed = [self.push_blob(name, layer, OCI_LAYER_GZIP) for layer in layers]
        return self.push_layers(name, pushed, platform=platform, tag=tag)

    def push_layers(
        self, name: str, layers: Sequence[Descriptor], *, platform: ImagePlatform, tag: str = "latest"
    ) -> Descriptor:
        """An image of layers that were pushed before."""
        rootfs = {"type": "layers", "diff_ids": [descriptor.digest for descriptor in layers]}
        config = {"os": platform.os, "architecture": platform.architecture, "rootfs": rootfs}
        document = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": self.push_blob(name, msgspec.json.encode(config), OCI_CONFIG),
            "layers": list(layers),
        }
        return msgspec.structs.replace(self.push_manifest(name, document, OCI_MANIFEST, tag), platform=platform)

    def push_index(self, name: str, images: Sequence[Descriptor], *, tag: str = "latest") -> Descriptor:
        document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(images)}
        return self.push_manifest(name, document, OCI_INDEX, tag)

    def push_blob(self, name: str, content: bytes, media_type: str) -> Descriptor:
        digest = digest_of(content)
        _, headers = self._call("POST", f"/v2/{name}/blobs/uploads/")
        place = urlsplit(headers["Location"])
        query = f"{place.query}&digest={digest}" if place.query else f"digest={digest}"
        binary = {"Content-Type": "application/octet-stream"}
        self._call("PUT", f"{place.path}?{query}", body=content, headers=binary, expected=201)
        return Descriptor(media_type=media_type, digest=digest, size=len(content))

    def push_manifest(self, name: str, document: object, media_type: str, tag: str) -> Descriptor:
        body = msgspec.json.encode(document)
        headers = {"Content-Type": media_type}
        self._call("PUT", f"/v2/{name}/manifests/{tag}", body=body, headers=headers, expected=201)
        return Descriptor(media_type=media_type, digest=digest_of(body), size=len(body))

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        expected: int = 202,
    ) -> tuple[int, Mapping[str, str]]:
        login = {"Authorization": "Basic " + base64.b64encode(f"{USERNAME}:{PASSWORD}".encode()).decode()}
        connection = http.client.HTTPConnection(self.address, timeout=30)
        try:
            connection.request(method, path, body=body, headers={**login, **(headers or {})})
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if expected and response.status != expected:
            raise ChildFailed(f"the registry answered {response.status} to {method} {path}: {body[:300]!r}")
        return response.status, dict(response.getheaders())

    # The process.

    def _start(self) -> None:
        settings: dict[str, object] = {
            "version": "0.1",
            "log": {"level": "warn"},
            "storage": {"filesystem": {"rootdirectory": str(self._home / "data")}},
            "http": {"addr": self.address},
        }
        if self._needs_login:
            (self._home / "htpasswd").write_text(_PASSWORD_FILE)
            settings["auth"] = {"htpasswd": {"realm": "tests", "path": str(self._home / "htpasswd")}}
        (self._home / "config.yml").write_text(json.dumps(settings))  # JSON is YAML
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                tied([find_program(), "serve", str(self._home / "config.yml")]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.defpath, "HOME": str(self._home), "OTEL_TRACES_EXPORTER": "none"},
                start_new_session=True,
            )
        self._until_it_serves()

    def _until_it_serves(self) -> None:
        end = time.monotonic() + _START_SECONDS
        while not self._answers():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > end:
                raise ChildFailed(f"the registry did not start: {self._log_tail()}")
            time.sleep(_POLL_SECONDS)

    def _answers(self) -> bool:
        try:
            return self._call("GET", "/v2/", expected=0)[0] == 200
        except OSError:
            return False

    def _log_tail(self) -> str:
        return " | ".join((self._home / "log").read_text(errors="replace").splitlines()[-5:])
