"""The name of the model is replaced in bodies, and not a byte of anything else."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.gateway.admit import asked_in_json, model_in_form
from corral.gateway.answers import GatewayRefusal
from corral.gateway.engine_requests import Piece, rename_in_form, rename_in_json, size_of
from tests.gateway.unit.test_forms import END, FILE, KIND, MODEL, part

NAMES = st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable())
SPACES = st.text(alphabet=" \t\r\n", max_size=3)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
OTHER_KEYS = st.text(max_size=8).filter(lambda key: key.lower() != "model") | st.sampled_from(
    ["models", "mode", "modell"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6) | st.just("model"), inner, max_size=4)
    ),
    max_leaves=20,
)


def whole(pieces: list[Piece]) -> bytes:
    joined = b"".join(pieces)
    assert len(joined) == size_of(pieces)
    return joined


@st.composite
def spelled(draw: st.DrawFn, text: str) -> str:
    """A JSON string that means the text, each of its characters escaped or not."""
    plain = json.dumps(text)
    if not text.isascii() or draw(st.booleans()):
        return plain if draw(st.booleans()) else json.dumps(text, ensure_ascii=False)
    return '"' + "".join(f"\\u{ord(c):04x}" if draw(st.booleans()) else json.dumps(c)[1:-1] for c in text) + '"'


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    """A body in three parts: what is before the value of `model`, the value, and what is after it."""
    others = draw(st.dictionaries(OTHER_KEYS, VALUES, max_size=5))
    written = []
    for key, value in others.items():
        pad = [draw(SPACES) for _ in range(4)]
        written.append(f"{pad[0]}{draw(spelled(key))}{pad[1]}:{pad[2]}{json.dumps(value)}{pad[3]}")
    place = draw(st.integers(min_value=0, max_value=len(written)))
    pad = [draw(SPACES) for _ in range(4)]
    key, value = draw(spelled("model")), draw(spelled(draw(NAMES)))
    before = draw(SPACES) + "{" + "".join(f"{each}," for each in written[:place]) + f"{pad[0]}{key}{pad[1]}:{pad[2]}"
    after = pad[3] + "".join(f",{each}" for each in written[place:]) + "}" + draw(SPACES)
    return before.encode("utf-8", "surrogatepass"), value.encode(), after.encode("utf-8", "surrogatepass")


def is_readable(body: bytes) -> bool:
    try:
        asked_in_json(body)
    except GatewayRefusal:
        return False
    return True


@given(bodies(), NAMES)
def test_only_the_value_of_model_changes(parts: tuple[bytes, bytes, bytes], name: str) -> None:
    before, value, after = parts
    body = before + value + after
    if not is_readable(body):  # lone surrogates: such a request never gets this far
        return
    renamed = whole(rename_in_json(body, name))
    assert renamed == before + msgspec.json.encode(name) + after
    assert asked_in_json(renamed).named() == name or len(name) > 512


@given(bodies(), VALUES, st.sampled_from(["model", "mod\\u0065l", "Model", "MODEL", "mOdEl"]), NAMES)
def test_a_body_that_names_two_models_is_refused(
    parts: tuple[bytes, bytes, bytes], other: Any, key: str, name: str
) -> None:
    before, value, after = parts
    extra = f'"{key}":{json.dumps(other)},'.encode()
    first = before.index(b"{") + 1
    for body in (
        before[:first] + extra + before[first:] + value + after,
        before + value + b"," + extra[:-1] + after,
    ):
        if is_readable(body) and body.count(b"odel") and _is_named(body):
            with pytest.raises(GatewayRefusal) as refused:
                rename_in_json(body, name)
            assert refused.value.status == 400
            assert refused.value.code == "ambiguous_model"


def _is_named(body: bytes) -> bool:
    try:
        return bool(asked_in_json(body).named())
    except GatewayRefusal:
        return False


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m"}',
        b'{"messages":[{"role":"user","content":"{\\"model\\":\\"m\\"}"}],"model":"m"}',
        b'{"metadata":{"model":"m","x":[{"model":"m"}]},"model":"m","tools":[{"model":"m"}]}',
        b'{"a":"\\\\","model" \n:\t"m"}',
        b'{"model":"m","messages":[{"content":"' + b"x" * 300_000 + b'"}]}',
        b'{"input":' + b"[" * 200 + b"]" * 200 + b',"model":"m"}',
    ],
)
def test_nested_and_quoted_names_stay(body: bytes) -> None:
    renamed = whole(rename_in_json(body, "there/m:4b"))
    assert len(renamed) == len(body) + len("there/m:4b") - 1
    assert json.loads(renamed) == {**json.loads(body), "model": "there/m:4b"}


def test_a_large_body_is_not_copied() -> None:
    body = b'{"model":"m","input":"' + b"x" * 1_000_000 + b'"}'
    pieces = rename_in_json(body, "n")
    assert [type(piece) for piece in pieces] == [memoryview, bytes, memoryview]
    assert all(piece.obj is body for piece in pieces if isinstance(piece, memoryview))


@given(NAMES.filter(lambda name: "\r" not in name), st.binary(max_size=200), st.booleans())
def test_only_the_field_model_of_a_form_changes(name: str, content: bytes, is_first: bool) -> None:
    file = part("file", content.replace(b"--b", b"-"), '; filename="model"')
    before, after = (b"", file) if is_first else (file, b"")
    renamed = whole(rename_in_form([KIND], before + MODEL + after + END, name))
    assert renamed == before + part("model", name.encode()) + after + END
    assert model_in_form([KIND], renamed) == name


def test_a_form_that_names_two_models_is_refused() -> None:
    with pytest.raises(GatewayRefusal, match="the form has 2 fields `model`"):
        rename_in_form([KIND], MODEL + FILE + part("model", b"other") + END, "n")


SMUGGLED = b"\r\n\r\nother\r\n"
REAL = b'Content-Disposition: form-data; name="model"'


@pytest.mark.parametrize(
    "head",
    [
        b'Content-Disposition: form-data; name="y"\r\n' + REAL,
        REAL + b'\r\ncontent-disposition: form-data; name="y"',
        b'X: content-disposition: form-data; name="y"\r\n' + REAL,
        REAL + b'; x="; name=foo"',
        REAL + b'; x=";name=\\"foo\\""',
        REAL + b'; name="y"',
        b"Content-Disposition: form-data; name=\"y\"; name*=utf-8''model",
        b'Content-Disposition: form-data; name*0="mod"; name*1="el"',
        b"Content-Disposition: form-data; name*=utf-8''model",
        b'Content-Disposition: form-data; name="mod\\el"',
        b'Content-Disposition: form-data; filename="a\\"; name="y"; b="; name="model"',
        b'Content-Disposition: form-data; name="y"\r\n\t; name="model"',
        b'Content-Disposition: form-data; name="y"\n' + REAL,
        b'Content-Disposition: form-data; name="y"\r' + REAL,
        b'Content-Disposition : form-data; name="y"\r\n' + REAL,
        b"Content-Type: text/plain",
        b'Content-Disposition: form-data; name="MODEL"',
        b'Content-Disposition: form-data; name="model "',
        b"Content-Disposition: form-data" + b" \t" * 7_000 + b"x",
    ],
)
def test_a_part_whose_name_parsers_may_disagree_on_is_refused(head: bytes) -> None:
    for body in (MODEL + b"--b\r\n" + head + SMUGGLED + END, b"--b\r\n" + head + SMUGGLED + MODEL + END):
        with pytest.raises(GatewayRefusal) as refused:
            rename_in_form([KIND], body, "n")
        assert refused.value.status == 400


@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n", b""])
def test_a_part_behind_another_end_of_line_is_refused(ending: bytes) -> None:
    inner = b"x" + ending + b"--b\n" + REAL + b"\n\nother"
    with pytest.raises(GatewayRefusal) as refused:
        rename_in_form([KIND], MODEL + part("file", inner) + END, "n")
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Type: multipart/form-data; boundary=b,c"],
        [b"Content-Type: multipart/form-data; boundary=b; boundary=c"],
        [b"Content-Type: multipart/form-data; boundary=b; boundary*=utf-8''c"],
        [KIND, b"content-type: multipart/form-data; boundary=c"],
    ],
)
def test_a_form_with_two_boundaries_is_refused(lines: list[bytes]) -> None:
    inner = b"\r\n" + (MODEL + FILE + END).replace(b"--b", b"--c")
    with pytest.raises(GatewayRefusal) as refused:
        rename_in_form(lines, MODEL + part("file", inner) + END, "n")
    assert refused.value.status == 400


def test_a_boundary_inside_quotes_is_none() -> None:
    lines = [b'Content-Type: multipart/form-data; x="; boundary=b; "; boundary=c']
    outer, inner = MODEL + part("file", b"") + END, (MODEL + FILE + END).replace(b"--b", b"--c")
    assert whole(rename_in_form(lines, inner, "n")) == inner.replace(b"whisper", b"n")
    with pytest.raises(GatewayRefusal):
        rename_in_form(lines, outer, "n")


@pytest.mark.parametrize(
    "head",
    [
        b"content-disposition: form-data; name=model",
        b'Content-Type: text/plain\r\nContent-Disposition: form-data; name="model"; x="; filename=foo";',
        b'Content-Disposition:form-data;name="model"\r\nContent-Length: 1',
    ],
)
def test_a_field_may_be_written_in_any_clear_way(head: bytes) -> None:
    renamed = whole(rename_in_form([KIND], b"--b\r\n" + head + b"\r\n\r\nm\r\n" + FILE + END, "n"))
    assert renamed == b"--b\r\n" + head + b"\r\n\r\nn\r\n" + FILE + END
