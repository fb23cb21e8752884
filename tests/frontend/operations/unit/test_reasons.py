"""Reasons: a code with fields, and the one sentence that is made of it."""

from string import Formatter

import msgspec
import pytest

from corral.frontend.operations.decide.reasons import Reason, ReasonCode, because, sentence

NAMES = ("rung", "proof", "seconds", "text", "by", "why", "backend", "backends", "installed_at")
NAMES += ("uri", "wanted", "digest", "version", "danger", "model", "count", "total", "path")


@pytest.mark.parametrize("code", list(ReasonCode))
def test_every_code_has_a_sentence(code: ReasonCode) -> None:
    words = sentence(Reason(code=code, fields={name: f"<{name}>" for name in NAMES}))
    assert words
    assert not [name for _, name, _, _ in Formatter().parse(words) if name]


def test_a_reason_may_be_part_of_another() -> None:
    missing = because(ReasonCode.BACKEND_MISSING, backend="{x} 100 %s")
    told = because(ReasonCode.CONTRADICTED, proof=missing)
    assert sentence(told) == "the node says that it is done, but the node does not have {x} 100 %s"
    assert msgspec.convert(msgspec.to_builtins(told), Reason) == told


def test_no_reason_has_no_words() -> None:
    assert sentence(None) == ""


def test_of_a_code_that_is_not_known_the_fields_are_told() -> None:
    stored = {"code": "new_one", "fields": {"model": "small", "why": {"code": "node_said", "fields": {"text": "no"}}}}
    assert sentence(msgspec.convert(stored, Reason)) == "small, no"
