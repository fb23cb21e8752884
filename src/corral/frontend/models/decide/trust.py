"""Which configurations let an engine run code that is no backend's: code that comes with the weights, or that the
configuration names. Deciding so needs the permission `backends.trust`, like installing a backend from elsewhere. Pure.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from corral.base.config_fields import Config
from corral.base.errors import AccessDenied
from corral.frontend.models.decide.keys import DEFAULTS, RULES, TEMPLATES

_TRUST: Final = re.compile(r"trust[\W_]*remote[\W_]*code", re.IGNORECASE)
_REFUSAL: Final = re.compile(rf"\W*{_TRUST.pattern}\s*[:=]\s*(false|no|off|0)\s*", re.IGNORECASE)
_FREE_PARTS: Final = ("engine_args", "options", "overrides")
"""Keys whose content reaches the engine as it is."""
_NAMES_OF_CODE: Final = re.compile(r".*_(cls|plugin|module_path)|logits_processors|middleware")
"""Arguments of vLLM and its like that name a class or a file to import."""
_ARGUMENT_END: Final = re.compile(r"[:=\s]")
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
    words = (path.rpartition(".")[2], _ARGUMENT_END.split(value.strip())[0] if isinstance(value, str) else "")
    has_name = any(_NAMES_OF_CODE.fullmatch(word.strip().lstrip("-").replace("-", "_").lower()) for word in words)
    return has_name and not _is_off(value)


def _is_off(value: object) -> bool:
    return not value or (isinstance(value, str) and value.strip().lower() in ("false", "no", "off", "0"))


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    """All values that hold no others, with their dotted keys; an item of a list has the key of the list."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item, path)
    else:
        yield path, value


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
