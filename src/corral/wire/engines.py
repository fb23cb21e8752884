"""Engines that somebody else runs: what administrators tell of them, and what they see."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from corral.wire.models import COUNT_TOKENS, EDITS, MESSAGES, OLLAMA_ROUTES, RESPONSES, ROUTE_USES, ModelUse

ENGINE_USES: Final[Mapping[str, frozenset[str]]] = {
    **{
        use.value: frozenset(route for route, own in ROUTE_USES.items() if own is use)
        - {EDITS, RESPONSES, MESSAGES, COUNT_TOKENS}
        - OLLAMA_ROUTES
        for use in ModelUse
    },
    "responses": frozenset({RESPONSES}),
    "messages": frozenset({MESSAGES, COUNT_TOKENS}),
}
"""What an engine can be said to do, and the routes of inference that it then gets. Chats in the shapes of OpenAI's
responses and of Anthropic's messages are words of their own: few engines know them."""
USUAL_USES: Final = (ModelUse.CHAT.value, ModelUse.COMPLETION.value)


def model_uses(uses: Iterable[str]) -> frozenset[ModelUse]:
    """What a model is for that an engine of these uses answers for."""
    use_names = {each.value for each in ModelUse}
    return frozenset(ModelUse(use) if use in use_names else ModelUse.CHAT for use in uses)


class EngineAsk(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An engine as it shall be. Body of `POST /api/v1/external-engines`, and of `PUT` for one of them."""

    model: str
    name: str
    url: str
    """Where its API is, with the path in front of `/chat/completions`; without a path that is `/v1`."""
    remote_model: str = ""
    """What the model is called there; empty when it has the same name."""
    uses: list[str] = msgspec.field(default_factory=lambda: list(USUAL_USES))
    key: str | UnsetType = UNSET
    """The bearer that it wants. Left out of a `PUT`: as it was; empty: none."""
    ca: str = ""
    """PEM of the authorities that its certificate is checked against; empty for those of the system."""
    health_path: str = ""
    """What is asked to learn whether it lives; empty for the list of models below its URL."""
    max_concurrent: int = 0
    """Requests that all gateways together have there at once; 0 is without limit."""
    weight: int = 1
    """How many requests it gets for one that an equally good replica of the fleet's gets."""
    fallback_order: int = 0
    """0: beside the fleet's own replicas; higher: only when those of lower order cannot answer."""
    is_enabled: bool = True


class ExternalEngineView(msgspec.Struct, kw_only=True):
    """An engine that somebody else runs, as the frontend that answers sees it."""

    id: str
    model: str
    name: str
    url: str
    remote_model: str
    uses: list[str]
    has_key: bool
    ca: str
    health_path: str
    max_concurrent: int
    weight: int
    fallback_order: int
    is_enabled: bool
    state: str
    """`up`, `failing` (asked last), `down` or `misconfigured` (not asked), `unknown` before the first look, or
    `disabled`."""
    reason: str = ""
    since: str | None = None
    """When the engine's current state began."""
    checked_at: str | None = None
    in_flight: int | None = None
    """None while a gateway is silent."""
    last_used_at: str | None = None
    created_at: str
    created_by: str
    changed_at: str
    changed_by: str
    revision: str
    """Changes with every change; `If-Match` of a `PUT` may name it."""


class EngineTrial(msgspec.Struct, kw_only=True):
    """Answer of `POST /api/v1/external-engines/{id}/test`: what one look at an engine found."""

    state: str
    reason: str = ""
    seconds: float
    models: list[str] = []
    """The names that it lists, as far as it lists some and they were asked for."""
    has_model: bool | None = None
    """Whether the name that it is asked by is among them; None when it lists none."""
