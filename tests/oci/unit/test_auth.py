"""Credentials as Docker and Podman keep them, and challenges of registries."""

import base64
import json
import time
from pathlib import Path

import pytest

from corral.oci.auth import Challenge, Credential, config_files, credential_for, place_of, read_challenge, read_stored
from corral.oci.errors import RegistryRefused
from corral.oci.references import parse_reference


def stored(tmp_path: Path, document: object) -> Path:
    file = tmp_path / "config.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def test_logins_of_a_docker_configuration(tmp_path: Path) -> None:
    auth = base64.b64encode(b"me:pass:word").decode()
    file = stored(
        tmp_path,
        {
            "auths": {
                "https://index.docker.io/v1/": {"auth": auth},
                "quay.io/team": {"username": "you", "password": "x"},
                "ghcr.io": {"identitytoken": "token"},
                "empty.example": {},
            },
            "HttpHeaders": {"unknown": "ignored"},
        },
    )

    found = read_stored([tmp_path / "missing", file])

    assert found.notes == ()
    assert found.credentials == (
        Credential(place="docker.io", username="me", password="pass:word"),
        Credential(place="quay.io/team", username="you", password="x"),
        Credential(place="ghcr.io", identity_token="token"),
    )


def test_helpers_are_not_run_and_that_is_told(tmp_path: Path) -> None:
    file = stored(tmp_path, {"credsStore": "desktop", "credHelpers": {"gcr.io": "gcloud"}})

    (note,) = read_stored([file]).notes

    assert "names credential helpers, which are not run" in note


@pytest.mark.parametrize("document", ["{", "[]", '{"auths": 3}', '{"auths": {"x": {"auth": "%%%"}}}'])
def test_a_file_that_cannot_be_used_is_told_and_stops_nothing(document: str, tmp_path: Path) -> None:
    found = read_stored([stored(tmp_path, document)])

    assert found.credentials == ()
    assert len(found.notes) == 1


def test_no_secret_is_shown() -> None:
    credential = Credential(place="x", username="me", password="secret", identity_token="other")

    assert "secret" not in repr(credential)
    assert "other" not in f"{credential}"


def test_where_credentials_are_looked_for() -> None:
    environment = {"HOME": "/home/me", "DOCKER_CONFIG": "/etc/docker", "REGISTRY_AUTH_FILE": "/auth.json"}

    assert [str(file) for file in config_files(environment)] == [
        "/auth.json",
        "/etc/docker/config.json",
        "/home/me/.docker/config.json",
        "/home/me/.config/containers/auth.json",
    ]
    assert config_files({}) == ()


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("https://index.docker.io/v1/", "docker.io"),
        ("https://registry.example/v2/", "registry.example"),
        ("localhost:5000", "localhost:5000"),
        ("quay.io/a/b", "quay.io/a/b"),
    ],
)
def test_places(key: str, place: str) -> None:
    assert place_of(key) == place


def test_the_longest_place_wins_and_names_are_whole() -> None:
    credentials = [Credential(place=place) for place in ("quay.io", "quay.io/team", "quay.io/team/echo", "quay.i")]

    def chosen(reference: str) -> str:
        found = credential_for(credentials, parse_reference(reference))
        return found.place if found else ""

    assert chosen("quay.io/team/echo:1") == "quay.io/team/echo"
    assert chosen("quay.io/team/echo2") == "quay.io/team"
    assert chosen("quay.io/teams/x") == "quay.io"
    assert chosen("ghcr.io/team/x") == ""


def test_challenges() -> None:
    bearer = 'Bearer realm="https://auth.example/token",service="registry",scope="repository:a:pull,push",error="x"'

    assert read_challenge([bearer]) == Challenge(
        scheme="bearer", realm="https://auth.example/token", service="registry", scope="repository:a:pull,push"
    )
    assert read_challenge(["Negotiate", "basic realm=x"]) == Challenge(scheme="basic")
    assert read_challenge(["Bearer realm=https://a/b, service=c"]).realm == "https://a/b"


@pytest.mark.parametrize("headers", [[], ["Negotiate"], ["Bearer"], ['Bearer service="x"'], ["Digest realm=x"]])
def test_challenges_that_nobody_can_answer(headers: list[str]) -> None:
    with pytest.raises(RegistryRefused):
        read_challenge(headers)


@pytest.mark.parametrize("filling", [" ", "a", ",", 'a="', 'a=\\"', "a=,"])
def test_a_challenge_takes_time_by_its_length_only(filling: str) -> None:
    """A registry that is asked once must not stop the process for longer than the header takes."""
    began = time.process_time()
    with pytest.raises(RegistryRefused):
        read_challenge([f"Bearer {filling * (1000 // len(filling))}!"])
    assert time.process_time() - began < 1
