"""What a cold load means for what is wanted of a node: it may bring a deleted backend back, never one that is going."""

from datetime import datetime, timedelta
from typing import Final

from corral.base.errors import Conflict
from corral.frontend.backends.decide.backend import artefact_of, wish_of
from corral.frontend.backends.operations import BackendOperations
from corral.frontend.backends.planning import Ask
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.nodes.decide.node import Node
from corral.frontend.operations.decide.intent import Intent, IntentKind, Verb
from corral.frontend.operations.store.intents import Intents
from corral.frontend.serving.decide.load_job import LoadNeed, needed_by_load
from corral.galleries.build_uris import BackendRef

_BY: Final = "control"
_MEANWHILE: Final = timedelta(minutes=1)
"""The load itself installs the backend; so long nobody else does."""


class LoadNeeds:
    def __init__(self, intents: Intents, operations: BackendOperations) -> None:
        self._intents = intents
        self._operations = operations

    async def admit(self, node: Node, spec: ModelSpec, *, since: datetime, now: datetime) -> None:
        """Conflict when the backend, or what the node has of the model, is about to be deleted there.

        A backend that was deleted is wanted again from now on. `since` is when the model's file came to be as it is.
        """
        for intent in await self._intents.of_node(node.id):
            if not _is_needed(intent, spec):
                continue
            match needed_by_load(intent, since=since, now=now):
                case LoadNeed.REFUSED:
                    is_model = intent.kind is IntentKind.MODEL
                    name = intent.subject if is_model else artefact_of(intent.payload).backend
                    raise Conflict(f"{name} is about to be deleted there")
                case LoadNeed.REPLACE:
                    ref = BackendRef(backend=spec.backend)
                    ask = Ask(verb=Verb.INSTALL, ref=ref, nodes=(node.id,), by=_BY, delay=_MEANWHILE)
                    await self._operations.start(ask)
                case LoadNeed.FREE:
                    pass


def _is_needed(intent: Intent, spec: ModelSpec) -> bool:
    """Whether an intent is about the model, or about the backend that it runs on."""
    if intent.kind is IntentKind.MODEL:
        return intent.subject == spec.name
    return spec.backend in wish_of(intent).names
