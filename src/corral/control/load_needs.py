"""What a cold load means for what is wanted of a node: it may bring a deleted backend back, never one that is going."""

from datetime import datetime, timedelta
from typing import Final

from corral.base.errors import Conflict
from corral.control.operations import Ask, Operations
from corral.domain.backend import Verb, model_key
from corral.domain.intent import LoadNeed, needed_by_load
from corral.domain.model import ModelSpec
from corral.domain.node import Node
from corral.state.intents import Intents

_BY: Final = "control"
_MEANWHILE: Final = timedelta(minutes=1)
"""The load itself installs the backend; so long nobody else does."""


class LoadNeeds:
    def __init__(self, intents: Intents, operations: Operations) -> None:
        self._intents = intents
        self._operations = operations

    async def admit(self, node: Node, spec: ModelSpec, *, since: datetime, now: datetime) -> None:
        """Conflict when the backend, or what the node has of the model, is about to be deleted there.

        A backend that was deleted is wanted again from now on. `since` is when the model's file came to be as it is.
        """
        backend = spec.backend
        for intent in await self._intents.of_node(node.id):
            if not intent.wish.names & {backend, model_key(spec.name)}:
                continue
            match needed_by_load(intent, since=since, now=now):
                case LoadNeed.REFUSED:
                    raise Conflict(f"{intent.wish.artefact.backend} is about to be deleted there")
                case LoadNeed.REPLACE:
                    ask = Ask(verb=Verb.INSTALL, backend=backend, nodes=(node.id,), by=_BY, delay=_MEANWHILE)
                    await self._operations.start(ask)
                case LoadNeed.FREE:
                    pass
