"""Builds the nodes' room: who is in the fleet, how they are asked, and the loops that notice who is gone."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from corral.base.tasks import Poke
from corral.frontend.nodes.client import NodeClient, NodeContacts, NodeLogs, NodeTokens
from corral.frontend.nodes.decide.liveness import BrakePolicy, LivenessPolicy
from corral.frontend.nodes.decide.registration import AdmissionPolicy
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.nodes.heartbeats import Heartbeats
from corral.frontend.nodes.liveness import BRAKE_PERIOD, HEALTH_PERIOD, HEARING_PERIOD, Brake, Health, HearingKeeper
from corral.frontend.nodes.registry import NodeRegistry
from corral.frontend.nodes.store.liveness import HearingPeriods
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.record.room import Foundation, Loop, RecordRoom


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    liveness: LivenessPolicy
    admission: AdmissionPolicy
    brake_share: float
    credentials_last: timedelta | None
    """How long a node's NATS credentials last. None: they do not expire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesRoom:
    store: Nodes
    fleet: Fleet
    registry: NodeRegistry
    heartbeats: Heartbeats
    hearing: HearingKeeper
    health: Health
    brake: Brake
    client: NodeClient
    contacts: NodeContacts
    tokens: NodeTokens
    logs: NodeLogs

    @classmethod
    def build(
        cls,
        foundation: Foundation,
        record: RecordRoom,
        settings: NodeSettings,
        nodes: Nodes,
        *,
        registration_token: str,
    ) -> Self:
        clock, bus, feed, policy = foundation.clock, foundation.bus, record.feed, settings.liveness
        keeper = HearingKeeper(HearingPeriods(foundation.database), bus, clock, policy)
        health, fleet = Health(nodes, keeper, feed, clock, policy), Fleet(nodes, keeper, clock, policy)
        contacts, tokens = NodeContacts(nodes), NodeTokens(foundation.secrets, registration_token)
        return cls(
            store=nodes,
            fleet=fleet,
            registry=NodeRegistry(
                nodes,
                foundation.secrets,
                feed,
                clock,
                fleet=fleet,
                health=health.poke,
                policy=settings.admission,
                credentials_last=settings.credentials_last,
            ),
            heartbeats=Heartbeats(nodes, keeper, clock, policy, health=health.poke),
            hearing=keeper,
            health=health,
            brake=Brake(
                nodes,
                record.events,
                foundation.leader,
                keeper,
                feed,
                clock,
                policy=BrakePolicy(share=settings.brake_share),
            ),
            client=NodeClient(bus, nodes, clock, contacts=contacts, health=health.poke),
            contacts=contacts,
            tokens=tokens,
            logs=NodeLogs(contacts, tokens),
        )

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        brake = record.when_new(self.brake.look, mark=self.brake.mark)
        return {
            "heartbeats": self.heartbeats.run,
            "hearing": record.every(HEARING_PERIOD, Poke(), self._hear, "hearing"),
            "health": record.every(HEALTH_PERIOD, self.health.poke, self.health.sweep, "health"),
            "brake": record.every(BRAKE_PERIOD, Poke(), brake, "brake"),
        }

    async def _hear(self) -> None:
        """After the clock was set, health looks at all nodes again."""
        jumps = self.hearing.jumps
        await self.hearing.tick()
        if self.hearing.jumps != jumps:
            self.health.poke.ring()
