"""Builds operations: the engine that brings intents about, whatever kind they are of, and what shows its progress."""

from typing import Self

import msgspec

from corral.base.tasks import Poke
from corral.bus.port import Handler
from corral.frontend.access.store.keys import Keys
from corral.frontend.access.store.sessions import SessionStore
from corral.frontend.nodes.room import NodesRoom
from corral.frontend.operations import progress
from corral.frontend.operations.broadcasts import Broadcasts
from corral.frontend.operations.decide.intent import IntentPolicy
from corral.frontend.operations.dispatcher import RETURNS_PERIOD, Dispatcher, DispatchStores, StorePlaces
from corral.frontend.operations.peers import PeerOperations
from corral.frontend.operations.progress import ProgressBoard
from corral.frontend.operations.service import HOUSEKEEPING_PERIOD, CancelGuard, Housekeeping, Operations, Retention
from corral.frontend.operations.store.intents import Intents
from corral.frontend.operations.store.operations import OperationStore
from corral.frontend.operations.watch import OperationWatch
from corral.frontend.record.room import Foundation, Loop, RecordRoom


class OperationStores(msgspec.Struct, frozen=True, kw_only=True):
    """The stores, with what other rooms have them do in the same transactions."""

    operations: OperationStore
    intents: Intents


class OperationsRoom(msgspec.Struct, frozen=True, kw_only=True):
    stores: OperationStores
    service: Operations
    dispatcher: Dispatcher
    """Later rooms say how their kinds of intents are worked on, with `handle`."""
    progress: ProgressBoard
    broadcasts: Broadcasts
    watch: OperationWatch
    peers: PeerOperations
    housekeeping: Housekeeping

    @classmethod
    def build(  # noqa: PLR0913 - each is a collaborator or a setting
        cls,
        foundation: Foundation,
        record: RecordRoom,
        nodes: NodesRoom,
        stores: OperationStores,
        *,
        guard: CancelGuard,
        stores_there: StorePlaces,
        policy: IntentPolicy,
        retention: Retention,
    ) -> Self:
        clock, frontend_id, due = foundation.clock, foundation.frontend_id, Poke()
        board = ProgressBoard(foundation.bus, clock)
        broadcasts = Broadcasts(foundation.bus, stores.operations, board, clock, frontend=frontend_id)
        service = Operations(
            stores.operations,
            nodes.fleet,
            record.feed,
            clock,
            guard=guard,
            progress=board,
            broadcasts=broadcasts,
            dispatcher=due,
        )
        dispatch_stores = DispatchStores(intents=stores.intents, nodes=nodes.contacts, events=record.events)
        return cls(
            stores=stores,
            service=service,
            dispatcher=Dispatcher(
                dispatch_stores, board, nodes.fleet, clock, policy, stores_there=stores_there, poke=due
            ),
            progress=board,
            broadcasts=broadcasts,
            watch=OperationWatch(stores.operations, board, clock, frontend=frontend_id),
            peers=PeerOperations(service, board, clock, frontend=frontend_id),
            housekeeping=Housekeeping(
                record.events,
                stores.operations,
                Keys(foundation.database),
                SessionStore(foundation.database),
                foundation.leader,
                nodes.admission,
                clock,
                retention=retention,
            ),
        )

    def subscriptions(self) -> dict[str, Handler]:
        return self.peers.handlers()

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        dispatcher, board = self.dispatcher, self.progress
        return {
            "dispatcher": dispatcher.run,
            "intents": record.every(dispatcher.renewed_every, Poke(), dispatcher.renew, "leases of intents"),
            "returns": record.follow(RETURNS_PERIOD, dispatcher.notice_returns, "returning nodes"),
            "progress": record.every(progress.PERIOD, board.poke, board.tend, "progress"),
            "broadcasts": self.broadcasts.run,
            "housekeeping": record.every(HOUSEKEEPING_PERIOD, Poke(), self.housekeeping.tidy, "housekeeping"),
        }
