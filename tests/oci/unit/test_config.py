"""From settings to orders."""

import json
from pathlib import Path

from corral.oci.auth import Credential
from corral.oci.config import ImagesConfig, Pin, make_order


def test_an_order_has_only_the_logins_that_it_needs(tmp_path: Path) -> None:
    auths = {place: {"username": "file", "password": "x"} for place in ("quay.io", "ghcr.io", "docker.io")}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths, "credsStore": "desktop"}))
    config = ImagesConfig(
        credentials=(Credential(place="quay.io", username="setting"),), auth_files=(tmp_path / "config.json",)
    )
    sources = ["quay.io/a/b", "oci://quay.io/c/d", "localai/x", str(tmp_path), "no uri!"]

    order, notes = make_order(
        config, sources, target=tmp_path / "target", cache=tmp_path / "cache", pin=Pin(digest="sha256:x")
    )

    assert [(one.place, one.username) for one in order.credentials] == [("quay.io", "setting"), ("docker.io", "file")]
    assert order.expected_digest == "sha256:x"
    assert notes[0].endswith("names credential helpers, which are not run; write the login into `auths`")
    assert [note.partition(":")[0] for note in notes[1:]] == ["quay.io/a/b", "oci", "localai/x"]
