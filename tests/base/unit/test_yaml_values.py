"""Values of YAML from strangers: typed as YAML 1.2 says, shared where aliases say so, with lines, entry by entry."""

import contextlib
import math
import time

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from corral.base.careful_yaml import UNREADABLE, YamlLimits, YamlRefused, YamlUnusable
from corral.base.yaml_values import YamlMapping, as_text, read_document, read_items, write_document

LIMITS = YamlLimits(most_values=10_000)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-12", -12),
        ("+3", 3),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0o17", 15),
        ("0b101", 5),
        ("017", 15),
        ("08", 8.0),
        ("0", 0),
        ("99999999999999999999999", 1e23),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e5", 1e5),
        ("-.inf", -math.inf),
        ("true", True),
        ("False", False),
        ("on", "on"),
        ("yes", "yes"),
        ("~", None),
        ("null", None),
        ("''", ""),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("!!int '5'", 5),
        ("2024-01-01", "2024-01-01"),
        ("1:30", "1:30"),
        ("1.2.3", "1.2.3"),
        ("0x", "0x"),
        ("-", "-"),
        ("a: [1, {b: two}]", {"a": [1, {"b": "two"}]}),
        ("", None),
    ],
)
def test_scalars_are_read_as_yaml_1_2_says(text: str, value: object) -> None:
    read = read_document(text if text != "-" else "'-'", LIMITS)
    assert read == value
    assert type(read) is type(value) or isinstance(read, YamlMapping)


def test_a_mapping_knows_the_lines_of_its_keys_and_of_merged_ones() -> None:
    text = "- &a\n  name: x\n  size: 1\n- <<: *a\n  name: y\n"
    items = read_items(text, LIMITS)
    assert items is not None
    second = items[1].value
    assert isinstance(second, YamlMapping)
    assert second == {"name": "y", "size": 1}
    assert (second.line, second.key_lines) == (4, {"name": 5, "size": 3})


def test_aliases_share_what_they_refer_to() -> None:
    value = read_document("a: &x [1, 2]\nb: *x\n", LIMITS)
    assert isinstance(value, dict)
    assert value["a"] is value["b"]


def test_a_key_given_twice_is_refused_with_its_line() -> None:
    with pytest.raises(YamlUnusable, match="has the key 'a' twice, again in line 3"):
        read_document("a: 1\nb: 2\na: 3\n", LIMITS)


def test_an_escaped_apostrophe_is_read_as_localai_reads_it() -> None:
    text = "a: \"\\'\"\nb: \"x\\'y\\'\"\nc: '\\\"'\n"
    assert read_document(text, LIMITS) == {"a": "'", "b": "x'y'", "c": '\\"'}
    with pytest.raises(yaml.YAMLError):
        read_document('a: "\\j"', LIMITS)


BROKEN = """\
- &first
  name: good
- name: "no end
  url: x
- <<: *nowhere
  name: lost
- <<: *first
  tags: [a]
- {name: x, name: y}
- - text
"""


def test_a_broken_entry_spoils_no_other() -> None:
    items = read_items(BROKEN, LIMITS)
    assert items is not None
    assert [item.line for item in items] == [1, 3, 5, 7, 9, 10]
    assert [bool(item.problem) for item in items] == [False, True, True, False, True, False]
    assert items[1].problem.startswith("is not YAML")
    assert "in line 5" in items[2].problem
    assert items[3].value == {"name": "good", "tags": ["a"]}
    assert isinstance(items[3].value, YamlMapping)
    assert items[3].value.key_lines == {"name": 2, "tags": 8}
    assert "twice, again in line 9" in items[4].problem


@pytest.mark.parametrize("text", ["- [", "- *a", "- &a [*a]", "- 'a"])
def test_where_no_entry_can_be_read_the_document_is_refused(text: str) -> None:
    with pytest.raises(UNREADABLE):
        read_items(text, LIMITS)


@pytest.mark.parametrize("text", ["", "a: b", "text"])
def test_what_is_no_list_has_no_entries(text: str) -> None:
    assert read_items(text, LIMITS) is None


def test_entries_that_are_too_large_together_are_refused_though_one_is_broken() -> None:
    text = "- &a [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n- 'x\n" + "- [*a, *a, *a, *a, *a]\n" * 500
    with pytest.raises(YamlRefused, match="stands for more than 10000 values"):
        read_items(text, LIMITS)


def test_a_document_of_broken_entries_is_refused_soon() -> None:
    with pytest.raises(YamlRefused, match="has more than 1000 entries that are not YAML"):
        read_items("- good\n" + "- ]\n" * 1_000_000, LIMITS)


def test_broken_entries_cost_linear_time() -> None:
    text = "- {name: x, a: [b, c]}\n" * 20_000 + "- 'x\n" + "- {name: y}\n" * 20_000
    began = time.process_time()
    items = read_items(text, YamlLimits(most_values=1_000_000))
    assert items is not None
    assert sum(1 for item in items if not item.problem) >= 20_000
    assert time.process_time() - began < 20


# Without digits: PyYAML writes the text `1e5` without quotes, because it is no number in YAML 1.1.
WORDS = st.text(st.characters(exclude_characters="0123456789", exclude_categories=["Cs"]), max_size=8)
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | WORDS
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4))


@given(VALUES)
def test_what_yaml_writes_is_read_back(value: object) -> None:
    text = yaml.safe_dump(value)
    assert read_document(text, LIMITS) == value


@given(st.text("-[]{}:&*<!|> \nab'\"", max_size=80))
def test_no_text_is_too_odd(text: str) -> None:
    with contextlib.suppress(*UNREADABLE):
        items = read_items(text, LIMITS, as_text)
        assert items is None or all(item.line >= 1 for item in items)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))


@given(VALUES)
@example("1e5")
@example("0o17")
@example("on")
@example("a\n b\n\n")
@example("\x85")
@example({"<<": {"a": 1}})
def test_what_is_written_is_read_as_the_same(value: object) -> None:
    written = write_document({"value": value})
    assert read_document(written, YamlLimits(deepest=64, most_values=100_000)) == {"value": value}
