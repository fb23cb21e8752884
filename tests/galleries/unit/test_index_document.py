"""The text of an index: YAML as LocalAI reads it, and nothing that a stranger can do harm with."""

import contextlib
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from corral.base.errors import InvalidInput
from corral.galleries.index_document import LIMITS, read_index


def values(text: str) -> list[object]:
    return [entry.value for entry in read_index(text.encode())]


def problems(text: str) -> list[str]:
    return [entry.problem for entry in read_index(text.encode())]


def test_merges_are_followed_and_what_an_entry_says_itself_wins() -> None:
    text = """
- &base
  name: x
  alias: x
  capabilities: {default: cpu-x, nvidia: cuda-x}
- !!merge <<: *base
  name: cpu-x
  uri: quay.io/x
- name: late
  <<: *base
- <<: [{alias: first}, *base]
  capabilities: {metal: metal-x}
"""
    base, build, late, listed = values(text)
    assert build == {**base, "name": "cpu-x", "uri": "quay.io/x"}  # type: ignore[dict-item]
    assert late["name"] == "late"  # type: ignore[index]
    assert listed == {"name": "x", "alias": "first", "capabilities": {"metal": "metal-x"}}


def test_scalars_stay_the_text_that_was_written() -> None:
    (value,) = values("- {version: 1.10, a: yes, b: 2024-01-01, c: 0x1F, d: ~, e: null, f: '', g: 'null', h: 1_000}")
    assert value == {
        "version": "1.10",
        "a": "yes",
        "b": "2024-01-01",
        "c": "0x1F",
        "d": None,
        "e": None,
        "f": "",
        "g": "null",
        "h": "1_000",
    }


def test_tags_of_other_programs_do_nothing() -> None:
    assert values("- name: !!python/object/apply:os.system ['echo']\n- !foo {name: x}") == [
        {"name": ["echo"]},
        {"name": "x"},
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- name: x\n  uri: a\n  name: y", "has the key 'name' twice"),
        ("- <<: text\n  name: x", "merges something that is not a mapping"),
        ("- <<: [text]\n  name: x", "merges something that is not a mapping"),
        ("- ? [a]\n  : b", "has a key that is not text"),
        ("- a: &a {x: 1, x: 2}\n", "has the key 'x' twice"),
    ],
)
def test_what_is_wrong_in_one_entry_is_its_own_problem(text: str, problem: str) -> None:
    told = problems(f"{text}\n- name: good\n  uri: a")
    assert told[0].startswith(problem)
    assert told[1] == ""


def test_an_entry_knows_its_line() -> None:
    assert [entry.line for entry in read_index(b"# comment\n- a: b\n\n- c: d\n")] == [2, 4]


def bomb(levels: int) -> str:
    lines = ["- a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"- a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


def merge_bomb(levels: int) -> str:
    lines = ["- &m0 {k: v}"]
    lines += [f"- &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is not a list"),
        (b"name: x", "is not a list"),
        (b"<html><body>502 Bad Gateway</body></html>", "is not a list"),
        (b"- a\n--- \n- b", "holds more than one document"),
        (b"- [", "is not YAML"),
        (b"- *nowhere", "has an alias *nowhere to what is not there"),
        (b"- &a [*a]", "has an alias *a to what contains itself"),
        (b"- \xff\xfe", "is not UTF-8 text"),
        (b"- \x00", "is not YAML"),
        (b"- " + b"[" * 100, "is nested more than"),
        (bomb(9).encode(), f"stands for more than {LIMITS.most_values} values"),
        (merge_bomb(9).encode(), f"stands for more than {LIMITS.most_values} values"),
    ],
)
def test_what_is_no_index_is_refused_in_no_time(content: bytes, problem: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidInput) as caught:
        read_index(content)
    assert problem in caught.value.message
    assert time.process_time() - began < 2


TEXTS = st.text("-[]{}:&*<!|> \nab", max_size=60).map(str.encode)


@given(st.binary(max_size=200) | TEXTS)
def test_no_bytes_are_too_odd(content: bytes) -> None:
    with contextlib.suppress(InvalidInput):
        assert all(entry.line >= 1 for entry in read_index(content))


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates()
DOCUMENTS = st.lists(
    st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(LEAVES, inner, max_size=3)),
    max_size=5,
)


@given(DOCUMENTS)
def test_whatever_yaml_can_write_can_be_read(document: list[object]) -> None:
    assert len(read_index(yaml.safe_dump(document).encode())) == len(document)
