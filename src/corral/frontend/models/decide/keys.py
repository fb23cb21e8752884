"""Which keys a model's configuration may have: those that Corral reads, and those that only LocalAI does. Any other is
a mistake that nothing else would tell, since unknown keys have no effect."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from corral.base.config_fields import Config
from corral.frontend.models.decide.options import FIELDS, REQUEST_DEFAULTS
from corral.frontend.models.decide.requests import REQUEST_KEYS

_LOCALAI: Final = """
    name backend alias description usage license urls icon tags disabled pinned concurrency_groups
    known_usecases known_input_modalities known_output_modalities
    stopwords cutstrings trimspace trimsuffix extract_regex roles system_prompt feature_flags grammar debug
    function reasoning reasoning_effort chat_template_kwargs n_draft prompt_cache_all prompt_cache_path prompt_cache_ro
    step download_files artifacts pipeline router proxy pii pii_detection mcp agent mitm compression
    limits.max_concurrent limits.retry_after_seconds grpc.attempts grpc.attempts_sleep_time
    tts.voice tts.audio_path tts.voice_cloning
    template.chat template.chat_message template.completion template.edit template.function template.multimodal
    template.reply_prefix template.join_chat_messages_by_character template.use_tokenizer_template
    diffusers.cuda diffusers.pipeline_type diffusers.scheduler_type diffusers.enable_parameters diffusers.img2img
    diffusers.clip_model diffusers.clip_subfolder diffusers.clip_skip diffusers.control_net
    parameters.model parameters.language parameters.translate parameters.n parameters.echo parameters.n_keep
    parameters.negative_prompt parameters.negative_prompt_scale parameters.use_fast_tokenizer parameters.clip_skip
    parameters.logprobs parameters.top_logprobs parameters.logit_bias parameters.tfz
"""
_FREE: Final = frozenset({"function", "reasoning", "engine_args"})
"""Parts whose keys the backend or LocalAI alone knows."""
_OWN: Final = "x-"
"""Keys that begin like this are the author's own, for anchors and notes."""
_MISTAKEN_PARTS: Final = ("", "parameters.", "template.", "tts.", "limits.")
"""Where keys stand that people write into another part."""
_NEAR: Final = 0.6
_MOST: Final = 20


def _known() -> frozenset[str]:
    own = {one.key for one in FIELDS} | set(REQUEST_KEYS) | {f"parameters.{name}" for name in REQUEST_DEFAULTS}
    return frozenset(own | {"threads"} | set(_LOCALAI.split()))


KNOWN: Final = _known()
_PARTS: Final = frozenset(key.rpartition(".")[0] for key in KNOWN if "." in key) - _FREE


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownKey:
    path: tuple[str, ...]
    near: str
    """The known key that was probably meant, dotted; empty when there is none."""

    @property
    def sentence(self) -> str:
        hint = f"; did you mean {self.near}?" if self.near else ""
        return f"unknown key {'.'.join(self.path)[:80]!r}, which has no effect{hint}"


def unknown_keys(config: Config) -> list[UnknownKey]:
    """The first ones, in the order of the file."""
    found = (UnknownKey(path=path, near=_near(path)) for path in _unknown(config, ()))
    return [key for key, _ in zip(found, range(_MOST), strict=False)]


def _unknown(part: Mapping[str, object], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key, value in part.items():
        here = (*path, str(key))
        dotted = ".".join(here)
        if dotted in _PARTS and isinstance(value, Mapping):
            yield from _unknown(value, here)
        elif dotted not in KNOWN and dotted not in _PARTS and not _is_free(dotted) and not here[-1].startswith(_OWN):
            yield here


def _is_free(dotted: str) -> bool:
    return dotted.partition(".")[0] in _FREE


def _near(path: tuple[str, ...]) -> str:
    """A key of the same name in another part, or else one of a like name in the same part."""
    *parts, key = path
    elsewhere = sorted(f"{part}{key.lower()}" for part in _MISTAKEN_PARTS if f"{part}{key.lower()}" in KNOWN)
    if elsewhere:
        return elsewhere[0]
    prefix = ".".join(parts)
    beside = {one.rpartition(".")[2]: one for one in KNOWN | _PARTS if one.rpartition(".")[0] == prefix}
    match = difflib.get_close_matches(key.lower()[:80], beside, n=1, cutoff=_NEAR)
    return beside[match[0]] if match else ""
