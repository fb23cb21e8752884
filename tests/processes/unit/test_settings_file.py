"""Settings from a file: what it may hold, and what is said when it holds something else."""

from datetime import timedelta
from pathlib import Path

import pytest

from corral.base.errors import SettingInvalid
from corral.base.logs import LogOutput
from corral.frontend.config import ControlConfig
from corral.processes.settings import gather
from corral.processes.settings_sources import resolve
from corral.worker.config import WorkerConfig

HOME = {"HOME": "/home/someone"}
FRONTEND = {**HOME, "CORRAL_NATS_URL": "nats://bus:4222"}


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[fronted]\n", "has an unknown section or key fronted; did you mean frontend?"),
        ("[frontend]\nprot = 1\n", "has an unknown key in section [frontend]; did you mean port?"),
        ("[worker]\nnonsense = 1\n", "has an unknown key in section [worker]; known are register_to,"),
        (
            "port = 1\n",
            "has an unknown section or key port; "
            "known are frontend, gateway, worker, up, client, gallery, images, hubs, signing, log",
        ),
        ("frontend = 1\n", "must have a section [frontend] here, not a value"),
        ("[frontend\n", "is not valid TOML"),
        ("[frontend]\nport = 1\nport = 2\n", "is not valid TOML"),
    ],
)
def test_what_nobody_knows_stops_every_command(tmp_path: Path, text: str, sentence: str) -> None:
    file = write(tmp_path / "corral.toml", text)
    with pytest.raises(SettingInvalid) as refused:
        gather({"--config": file}, FRONTEND)
    assert sentence in str(refused.value)
    assert file in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("port = 'x'", 'port: "x" from port in section [frontend] of'),
        ("port = true", 'port: "true" from port in section [frontend] of'),
        ("port = [1]", 'port: "[1]" from port in section [frontend] of'),
        ("port = {a = 1}", "port: \"{'a': 1}\" from port in section [frontend] of"),
        ("registration_token = 'a b'", "registration_token: the value from registration_token in section"),
    ],
)
def test_a_bad_value_names_its_place(tmp_path: Path, text: str, sentence: str) -> None:
    file = write(tmp_path / "corral.toml", f"[frontend]\n{text}\n")
    with pytest.raises(SettingInvalid) as refused:
        resolve(ControlConfig, gather({"--config": file}, FRONTEND))
    assert str(refused.value).startswith(sentence)


def test_native_types_are_read(tmp_path: Path) -> None:
    text = """
    [worker]
    register_to = ["http://one:8080", "http://two:8080"]
    nats_url = "nats://someone:secret@bus"
    labels = {zone = "a,b", disk = "fast"}
    max_port = 60000
    heartbeat_interval = 2.5
    [log]
    level = "debug"
    """
    sources = gather({"--config": write(tmp_path / "corral.toml", text)}, HOME)
    settings = resolve(WorkerConfig, sources)
    assert settings.frontend.urls == ("http://one:8080", "http://two:8080")
    assert settings.node.labels == {"zone": "a,b", "disk": "fast"}
    assert settings.heartbeat_interval == timedelta(seconds=2.5)
    assert settings.addresses.grpc_max_port == 60000
    assert resolve(LogOutput, sources).level == "debug"


def test_the_variable_names_a_file_too(tmp_path: Path) -> None:
    file = write(tmp_path / "corral.toml", "[frontend]\nport = 7\n")
    assert resolve(ControlConfig, gather({}, {**FRONTEND, "CORRAL_CONFIG": file})).port == 7


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingInvalid, match=r"config: cannot read .* from the flag --config: No such file"):
        gather({"--config": str(tmp_path / "none.toml")}, FRONTEND)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corral.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingInvalid, match="is not UTF-8 text"):
        gather({"--config": str(tmp_path / "corral.toml")}, FRONTEND)


def test_an_open_file_with_secrets_is_warned_about(tmp_path: Path) -> None:
    path = tmp_path / "corral.toml"
    file = write(path, "[frontend]\nregistration_token = 'x'\nport = 1\n")
    assert gather({"--config": file}, FRONTEND).warnings == []
    path.chmod(0o644)
    [warning] = gather({"--config": file}, FRONTEND).warnings
    assert warning == f"{file} holds registration_token and may be read by others; run: chmod 600 {file}"
