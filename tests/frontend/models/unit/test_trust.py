"""Which configurations let code run that no gallery has."""

from typing import Any

import pytest

from corral.base.errors import AccessDenied
from corral.frontend.models.decide.trust import check_trust, trusts_code

BASE: dict[str, Any] = {"name": "m", "backend": "vllm", "parameters": {"model": "org/weights"}}
TRUSTING = {**BASE, "trust_remote_code": True}


@pytest.mark.parametrize(
    "more",
    [
        {"trust_remote_code": True},
        {"Trust-Remote-Code": "yes"},
        {"engine_args": {"trust_remote_code": True}},
        {"engine_args": {"--trust-remote-code": True}},
        {"engine_args": {"speculative_config": {"trust_remote_code": 1}}},
        {"engine_args": "--trust-remote-code"},
        {"engine_args": {"extra": '{"trust_remote_code": true}'}},
        {"engine_args": {"tool_parser_plugin": "x.py"}},
        {"engine_args": {"worker-extension-cls": "x.Y"}},
        {"engine_args": {"kv_transfer_config": {"kv_connector_module_path": "x"}}},
        {"options": ["a:b", "trust_remote_code:true"]},
        {"options": ["--logits-processors=x.Y"]},
        {"overrides": ["trust_remote_code=1"]},
        {"engine_args": '{"worker_cls": "x.Y"}'},
        {"engine_args": "--enforce-eager --worker-cls x.Y"},
        {"engine_args": {"kv_transfer_config": '{"kv_connector_module_path": "x"}'}},
        {"engine_args": {"extra": r'{"tool\u005fparser\u005fplugin": "x.py"}'}},
        {"engine_args": {"extra": r'{"trust\u005fremote\u005fcode": true}'}},
        {"engine_args": {"enable_custom_logit_processor": True}},
        {"options": ['engine_args:{"worker_cls": "x.Y"}']},
        {"options": ["a:1,tool_parser_plugin=x.py"]},
    ],
)
def test_code_from_elsewhere_is_found(more: dict[str, Any]) -> None:
    assert trusts_code({**BASE, **more}) is not None


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"trust_remote_code": False},
        {"engine_args": {"trust_remote_code": False, "max_num_seqs": 4, "tool_parser_plugin": ""}},
        {"options": ["trust_remote_code:false", "gpu", "voice:/models/my_plugin/voice.bin", "prompt:{not JSON"]},
        {"engine_args": {"speculative_config": '{"num_speculative_tokens": 4}'}},
        {"system_prompt": "never trust_remote_code: true"},
    ],
)
def test_what_runs_no_other_code(more: dict[str, Any]) -> None:
    assert trusts_code({**BASE, **more}) is None


def test_what_was_trusted_may_change_in_other_ways() -> None:
    changed = {**TRUSTING, "context_size": 9, "parameters": {"model": "org/weights", "temperature": 0.1}}
    check_trust(changed, TRUSTING, may_trust=False)


@pytest.mark.parametrize(
    "more",
    [
        {"parameters": {"model": "evil/weights"}},
        {"parameters": {"model": "org/weights", "tokenizer": "evil/words"}},
        {"backend": "transformers"},
        {"engine_args": {"tokenizer": "evil/words"}},
        {"draft_model": "evil"},
    ],
)
def test_other_code_has_to_be_trusted_anew(more: dict[str, Any]) -> None:
    with pytest.raises(AccessDenied, match=r"backends\.trust"):
        check_trust({**TRUSTING, **more}, TRUSTING, may_trust=False)
    check_trust({**TRUSTING, **more}, TRUSTING, may_trust=True)
