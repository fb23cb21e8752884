"""Which model a form is for."""

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.gateway.admit import asked_in_form, model_in_form
from corral.gateway.answers import GatewayRefusal
from corral.gateway.head import RequestHead

KIND = b"Content-Type: multipart/form-data; boundary=b"


def part(name: str, content: bytes, more: str = "") -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + content + b"\r\n"


FILE = part("file", b"RIFF\r\n\r\n--x\0", '; filename="model"')
MODEL = part("model", b"whisper")
END = b"--b--\r\n"


@pytest.mark.parametrize(
    "body",
    [
        MODEL + FILE + END,
        FILE + MODEL + END,
        b"preamble\r\n" + FILE + MODEL + END,
        part("language", b"en") + FILE + MODEL + b"--b--",
        b"--b\r\ncontent-disposition:form-data;name=model\r\n\r\nwhisper\r\n--b--",
        b'--b\r\nX: y\r\nContent-Disposition: form-data; x="y"; name="model"\r\n\r\nwhisper\r\n--b--',
    ],
)
def test_the_model_is_found_wherever_it_stands(body: bytes) -> None:
    assert model_in_form([b"Accept: */*", KIND], body) == "whisper"


_SLOW_HEAD = part("x", b"v").replace(b"Content-", b"Content-Disposition:form-data;" * 540 + b"\r\nContent-", 1)
_LOOKALIKES = part("x", b"\r\n--bc" * 19_000)


@pytest.mark.parametrize("slow", [_SLOW_HEAD, _LOOKALIKES], ids=["heads", "boundaries"])
def test_a_form_takes_time_by_its_size_only(slow: bytes) -> None:
    """It is read on the event loop, so whoever has a key would hold up everybody else. It takes a tenth of that."""
    began = time.process_time()
    with suppress(GatewayRefusal):
        assert model_in_form([KIND], slow * 200 + MODEL + END) == "whisper"
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "kind", [b'content-type:multipart/form-data;charset=x; BOUNDARY="b"', KIND + b"; charset=utf-8"]
)
def test_the_boundary_is_found_however_it_is_written(kind: bytes) -> None:
    assert model_in_form([kind], MODEL + END) == "whisper"


def test_a_form_without_a_model_is_refused_by_name() -> None:
    head = RequestHead()
    head.lines = [KIND]
    for body in (FILE + END, part("model", b"") + END):
        with pytest.raises(GatewayRefusal, match="`model` is missing"):
            asked_in_form(head, body).named()
    with pytest.raises(GatewayRefusal, match="such a long name"):
        asked_in_form(head, part("model", b"x" * 600) + END).named()


@pytest.mark.parametrize(
    ("lines", "body", "words"),
    [
        ([b"Content-Type: application/json"], b"{}", "must be multipart/form-data"),
        ([], MODEL + END, "must be multipart/form-data"),
        ([b"Content-Type: multipart/form-data"], MODEL + END, "must be multipart/form-data"),
        ([b"Content-Type: multipart/form-data; boundary="], MODEL + END, "names no boundary"),
        ([KIND], b"", "not the form that its Content-Type names"),
        ([KIND], b"--c\r\n", "not the form that its Content-Type names"),
        ([KIND], FILE, "cut off, or damaged"),
        ([KIND], b"--b\r\nContent-Dis", "cut off, or damaged"),
        ([KIND], part("x", b"") * 300 + END, "more than 256 parts"),
    ],
)
def test_what_is_no_form_is_refused(lines: list[bytes], body: bytes, words: str) -> None:
    with pytest.raises(GatewayRefusal, match=words) as refused:
        model_in_form(lines, body)
    assert refused.value.status == 400


@given(
    st.lists(st.sampled_from([b"--b", b"\r\n", b"--", b'Content-Disposition: form-data; name="model"', b"x", b"\0"]))
)
def test_no_body_is_too_strange(pieces: list[bytes]) -> None:
    try:
        found = model_in_form([KIND], b"".join(pieces))
    except GatewayRefusal:
        return
    assert isinstance(found, str)
