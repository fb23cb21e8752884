"""Whatever the text: a value or one sentence, never a traceback, and never a secret in it."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from corral.base.errors import SettingInvalid
from corral.base.settings import Group, Setting, settings_of
from corral.frontend.config import ControlConfig
from corral.processes.settings import all_sections, gather
from corral.processes.settings_sources import SettingSources, resolve
from corral.worker.config import WorkerConfig

NEEDED = {
    "HOME": "/home/someone",
    "CORRAL_NATS_URL": "nats://bus",
    "CORRAL_REGISTER_TO": "http://frontend",
    "CORRAL_CONTROL_URL": "http://frontend",
}
ALL = [(group, setting) for group in all_sections() for setting in settings_of(group)]
IDS = [f"{setting.section}.{setting.name}" for _, setting in ALL]
TEXTS = st.text(max_size=60) | st.from_regex(r"[a-z]{0,8}(://)?[^a-z]{0,20}[@:?/.,=%\[\]0-9]{0,20}")


AWKWARD = [
    "9" * 400,
    "9" * 40 + "d",
    "1e999999",
    "٣",
    "http://[::1",
    "nats://h:99999",
    "~nobody-of-that-name/x",
    "\0",
    "a=b=c,,=",
    "-1",
    " ",
    "\n",
    "://@",
    "x" * 100_000,
]


@pytest.mark.parametrize(("group", "setting"), ALL, ids=IDS)
def test_awkward_text_is_a_value_or_one_sentence(group: type[Group], setting: Setting) -> None:
    for text in AWKWARD:
        check(group, setting, text)


@settings(max_examples=400, deadline=None)
@given(chosen=st.sampled_from(ALL), text=TEXTS)
def test_any_text_is_a_value_or_one_sentence(chosen: tuple[type[Group], Setting], text: str) -> None:
    check(*chosen, text)


def check(group: type[Group], setting: Setting, text: str) -> None:
    sources = [gather({}, {**NEEDED, setting.env[0]: text})]
    if setting.flag:
        sources.append(gather({setting.flag: text}, NEEDED))
    for source in sources:
        sentence = refusal(group, source)
        if sentence is not None:
            assert "\n" not in sentence
            assert sentence.startswith(f"{setting.name}: ")
            assert setting.env[0] in sentence or setting.flag in sentence


def refusal(group: type[Group], source: SettingSources) -> str | None:
    """The sentence about what cannot be used; None when all can."""
    try:
        resolve(group, source)
    except SettingInvalid as refused:
        return str(refused)
    return None


@settings(max_examples=150, deadline=None)
@given(
    password=st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=6, max_size=20),
    scheme=st.sampled_from(["nats", "tls", "postgresql", "mysql", "http", ""]),
)
def test_a_password_never_shows_in_a_refusal(password: str, scheme: str) -> None:
    marked = f"sEcReT{password}sEcReT"
    url = f"{scheme}://someone:{marked}@host:port/x"
    for group, variable, flag in (
        (ControlConfig, "CORRAL_NATS_URL", "--nats"),
        (ControlConfig, "CORRAL_DATABASE", "--database"),
        (WorkerConfig, "CORRAL_REGISTER_TO", "--register-to"),
    ):
        for source in (gather({}, {**NEEDED, variable: url}), gather({flag: url}, NEEDED)):
            sentence = refusal(group, source)
            assert sentence is None or "sEcReT" not in sentence
            assert sentence is not None or flag not in source.flags, "a password came through on the command line"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=80) | TEXTS.map(lambda text: f"[frontend]\n{text}".encode()))
@example(b"[frontend]\nport = 0x" + b"f" * 6000)
@example(b"[frontend]\nport = " + b"9" * 6000)
@example(b"a = " + b"[" * 100000)
@example(b'["front\\nend"]\n')
@example(b'[frontend]\n"po\\nrt" = 1\n')
def test_any_file_is_read_or_refused_with_a_sentence(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "corral.toml"
    file.write_bytes(content)
    try:
        sources = gather({"--config": str(file)}, NEEDED)
    except SettingInvalid as refused:
        sentence: str | None = str(refused)
    else:
        sentence = refusal(ControlConfig, sources)
    assert sentence is None or "\n" not in sentence
