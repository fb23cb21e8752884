"""Repositories that configurations of models name, and where their files are."""

import hashlib
from typing import Any

import pytest

from corral.base.errors import InvalidInput
from corral.galleries.model_artifacts import ModelArtifact, read_artifacts

SOURCE = {"type": "huggingface", "repo": "org/name"}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def artifact(**patterns: tuple[str, ...]) -> ModelArtifact:
    return ModelArtifact(name="model", repository="org/name", **patterns)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("*.nemo", "a.nemo", True),
        ("*.nemo", "deep/in/a.nemo", True),
        ("config.json", "whisper/config.json", True),
        ("scheduler/**", "scheduler/config.json", True),
        ("scheduler/*", "scheduler/deep/config.json", False),
        ("scheduler/*", "other/config.json", False),
        ("lora/[ab].bin", "lora/b.bin", True),
        ("A.bin", "a.bin", False),
    ],
)
def test_a_star_of_a_pattern_stays_within_one_part(pattern: str, path: str, is_match: bool) -> None:
    assert artifact(allow_patterns=(pattern,)).wants(path) is is_match
    assert artifact(ignore_patterns=(pattern,)).wants(path) is not is_match


def test_what_is_both_allowed_and_ignored_is_left_out() -> None:
    wanted = artifact(allow_patterns=("*.bin",), ignore_patterns=("big.*",))
    assert [wanted.wants(path) for path in ("a.bin", "big.bin", "a.txt")] == [True, False, False]


def test_a_snapshot_is_called_by_the_hash_of_what_was_asked_for() -> None:
    """Patterns are sorted, and left out where there are none; <, > and & are escaped as Go does it."""
    start = '{"type":"huggingface","endpoint":"https://hub","repo":"org/name","revision":"' + COMMIT + '"'
    plain, filtered = start + "}", start + ',"allow_patterns":["\\u003ca\\u003e","b\\u0026"]}'

    assert artifact().cache_key("https://hub", COMMIT) == hashlib.sha256(plain.encode()).hexdigest()
    patterns = artifact(allow_patterns=("b&", "<a>"))
    assert patterns.cache_key("https://hub", COMMIT) == hashlib.sha256(filtered.encode()).hexdigest()


def test_the_first_artefact_is_the_model_and_the_others_are_companions() -> None:
    companion = {"name": "voice", "target": "companion", "source": {**SOURCE, "revision": "v1"}}
    read = read_artifacts({"artifacts": [{"source": SOURCE}, companion]})
    assert [(one.name, one.revision) for one in read] == [("model", "main"), ("voice", "v1")]
    assert read_artifacts({}) == []


@pytest.mark.parametrize(
    ("items", "field"),
    [
        ([{"source": {"type": "s3", "repo": "org/name"}}], "artifacts[0].source.type"),
        ([{"source": {"type": "huggingface", "repo": "name"}}], "artifacts[0].source.repo"),
        ([{"source": {"type": "huggingface", "repo": "org/../name"}}], "artifacts[0].source.repo"),
        ([{"name": "voice", "target": "companion", "source": SOURCE}], "artifacts[0]"),
        ([{"source": SOURCE}, {"source": SOURCE}], "artifacts[1]"),
        ([{"source": SOURCE}, {"name": "Big Voice", "target": "companion", "source": SOURCE}], "artifacts[1]"),
    ],
)
def test_artefacts_that_cannot_be_had_are_refused(items: list[Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_artifacts({"artifacts": items})
    assert caught.value.field == field
