"""Which configurations let an engine run code that is no backend's: code that comes with the weights, or that the
configuration names. Deciding so needs the permission `backends.trust`, like installing a backend from elsewhere. Pure.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from corral.base.config_fields import Config
from corral.base.errors import AccessDenied
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.frontend.models.decide.keys import DEFAULTS, RULES, TEMPLATES

_TRUST: Final = re.compile(r"trust[\W_]*remote[\W_]*code", re.IGNORECASE)
_REFUSAL: Final = re.compile(rf"\W*{_TRUST.pattern}\s*[:=]\s*(false|no|off|0)\s*", re.IGNORECASE)
_FREE_PARTS: Final = ("engine_args", "options", "overrides")
"""Keys whose content reaches the engine as it is."""
_NAMES_OF_CODE: Final = re.compile(r".*_(cls|plugin|module_path)|.*logits?_processors?|middleware")
"""Arguments of vLLM, SGLang and their like that name a class or a file to import, or let requests bring code."""
_WORD: Final = re.compile(r"[\w-]+")
_VALUE_FOLLOWS: Final = re.compile(r"""[\\"']*(?:\s|[:=]|$)""")
"""What comes after a word of a text that is the name of an argument."""
_JSON_BEGINS: Final = re.compile(r"[{\[]")
_HARMLESS: Final = (
    "context_size description disabled f16 gpu_layers gpu_memory_utilization known_usecases max_model_len mmap pinned "
    "tensor_parallel_size usage"
)
_NOT_CODE: Final = frozenset([*_HARMLESS.split(), *(field.key for field in (*DEFAULTS, *RULES, *TEMPLATES))])
"""Keys that anybody who may change models may change, whatever else the configuration says."""


def check_trust(config: Config, before: Config | None, *, may_trust: bool) -> None:
    """AccessDenied for code that was not trusted before, unless the caller may decide that.

    `before` is what was decided already: with the same code from the same place, other keys may change.
    """
    if may_trust or (where := trusts_code(config)) is None:
        return
    if before is None or _without_harmless(config) != _without_harmless(before):
        raise AccessDenied(
            f"{where} lets code run on nodes that is of no gallery; that needs the permission backends.trust, "
            "which keys of scope admin have"
        )


def trusts_code(config: Config) -> str | None:
    """The key that lets other code run; None when there is none."""
    for key, value in config.items():
        is_free = key in _FREE_PARTS
        for path, leaf in _leaves(value, str(key)):
            if _is_trust(path, leaf) or (is_free and _names_code(path, leaf)):
                return path[:100]
    return None


def _is_trust(path: str, value: object) -> bool:
    return _TRUST.search(path) is not None and not _is_off(value)


def _names_code(path: str, value: object) -> bool:
    if isinstance(value, str) and _TRUST.search(value):
        return _REFUSAL.fullmatch(value) is None
    has_name = _is_name_of_code(path.rpartition(".")[2]) or (isinstance(value, str) and _has_argument_of_code(value))
    return has_name and not _is_off(value)


def _has_argument_of_code(text: str) -> bool:
    return any(
        _is_name_of_code(word[0]) and _VALUE_FOLLOWS.match(text, word.end()) is not None
        for word in _WORD.finditer(text)
    )


def _is_name_of_code(word: str) -> bool:
    return _NAMES_OF_CODE.fullmatch(word.strip().lstrip("-").replace("-", "_").lower()) is not None


def _is_off(value: object) -> bool:
    return not value or (isinstance(value, str) and value.strip().lower() in ("false", "no", "off", "0"))


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    """All values that hold no others, with their dotted keys; an item of a list has the key of the list.

    Engines read some texts as JSON, so what a text may hold as JSON follows it.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item, path)
    else:
        yield path, value
        yield from _leaves_in_text(value, path)


def _leaves_in_text(value: object, path: str) -> Iterator[tuple[str, object]]:
    if not isinstance(value, str) or (begin := _JSON_BEGINS.search(value)) is None:
        return
    try:
        document = msgspec.json.decode(value[begin.start() :])
    except UNREADABLE_JSON:
        return
    yield from _leaves(document, path)


def _without_harmless(config: Config, above: str = "") -> dict[str, object]:
    remaining: dict[str, object] = {}
    for key, value in config.items():
        path = f"{above}{key}"
        if path in _NOT_CODE:
            continue
        inner = _without_harmless(value, f"{path}.") if isinstance(value, Mapping) else value
        if inner != {}:
            remaining[key] = inner
    return remaining
