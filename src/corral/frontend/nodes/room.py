"""Builds the nodes' room: who is in the fleet, how they are asked, and the loops that notice who is gone."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

import msgspec

from corral.base.tasks import Poke
from corral.frontend.access.fleet_tls import FleetTls
from corral.frontend.nodes.admission import NodeAdmission
from corral.frontend.nodes.client import NodeClient
from corral.frontend.nodes.contacts import NodeContacts, NodeDoors, NodeTokens
from corral.frontend.nodes.decide.liveness import BrakePolicy, LivenessPolicy
from corral.frontend.nodes.decide.registration import AdmissionPolicy
from corral.frontend.nodes.dialling import Dialling
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.nodes.fleet_key import FleetKey
from corral.frontend.nodes.heartbeats import Heartbeats
from corral.frontend.nodes.invitations import Invitations, SourceLimit
from corral.frontend.nodes.liveness import BRAKE_PERIOD, HEALTH_PERIOD, HEARING_PERIOD, Brake, Health, HearingKeeper
from corral.frontend.nodes.logs import LogFollowing, NodeLogs
from corral.frontend.nodes.nats_users import REVOKING_PERIOD, NatsIssuer, NatsRevocations, Revoking
from corral.frontend.nodes.registry import NodeRegistry
from corral.frontend.nodes.store.invitations import InvitationStore
from corral.frontend.nodes.store.liveness import HearingPeriods
from corral.frontend.nodes.store.nats_users import NatsUsers
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.record.room import Foundation, Loop, RecordRoom
from corral.wire.registration import NatsOffer

if TYPE_CHECKING:
    from corral.bus.minting import Minter

_CHECKS_PER_SOURCE: Final = 30
"""Checks that one source address may ask for in a minute."""


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    liveness: LivenessPolicy
    admission: AdmissionPolicy
    brake_share: float
    minter: "Minter | None"
    """Makes users of NATS for nodes. None: nodes bring their own."""
    nats_offer: Callable[[], NatsOffer] | None
    """Returns where nodes find NATS."""
    revoker: Revoking | None
    """Ends such users before they expire. None: they end then."""


class NodesRoom(msgspec.Struct, frozen=True, kw_only=True):
    store: Nodes
    fleet: Fleet
    admission: NodeAdmission
    registry: NodeRegistry
    invitations: Invitations
    fleet_key: FleetKey
    dialling: Dialling
    check_limit: SourceLimit
    """How often a machine may ask to be called."""
    heartbeats: Heartbeats
    hearing: HearingKeeper
    health: Health
    brake: Brake
    client: NodeClient
    contacts: NodeContacts
    tokens: NodeTokens
    logs: NodeLogs
    following: LogFollowing
    tls: FleetTls
    doors: NodeDoors
    nats_users: NatsIssuer
    revocations: NatsRevocations

    @classmethod
    def build(  # noqa: PLR0913 - each is a collaborator
        cls,
        foundation: Foundation,
        record: RecordRoom,
        settings: NodeSettings,
        nodes: Nodes,
        *,
        registration_token: str,
        fleet_key: FleetKey,
        tls: FleetTls,
    ) -> Self:
        clock, bus, feed, policy = foundation.clock, foundation.bus, record.feed, settings.liveness
        keeper = HearingKeeper(HearingPeriods(foundation.database), bus, clock, policy)
        health, fleet = Health(nodes, keeper, feed, clock, policy), Fleet(nodes, keeper, clock, policy)
        contacts, tokens = NodeContacts(nodes), NodeTokens(foundation.secrets, registration_token)
        doors = NodeDoors(contacts, tls)
        revocations = NatsRevocations(NatsUsers(foundation.database), settings.revoker, bus, clock)
        issuer = NatsIssuer(settings.minter, settings.nats_offer)
        brake_policy = BrakePolicy(share=settings.brake_share)
        registry = NodeRegistry(nodes, feed, clock, health=health.poke, nats_users=issuer, revocations=revocations.poke)
        admission = NodeAdmission(
            nodes,
            foundation.secrets,
            feed,
            clock,
            fleet=fleet,
            health=health.poke,
            policy=settings.admission,
            nats_users=issuer,
            revocations=revocations.poke,
        )
        return cls(
            store=nodes,
            fleet=fleet,
            admission=admission,
            registry=registry,
            invitations=Invitations(InvitationStore(foundation.database), feed, clock),
            fleet_key=fleet_key,
            dialling=Dialling(),
            check_limit=SourceLimit(clock, most=_CHECKS_PER_SOURCE),
            heartbeats=Heartbeats(nodes, keeper, feed, clock, policy, health=health.poke),
            hearing=keeper,
            health=health,
            brake=Brake(nodes, record.events, foundation.leader, keeper, feed, clock, policy=brake_policy),
            client=NodeClient(bus, nodes, clock, contacts=contacts, health=health.poke),
            contacts=contacts,
            tokens=tokens,
            logs=NodeLogs(contacts, tokens, doors),
            following=LogFollowing(contacts, tokens, doors, clock),
            tls=tls,
            doors=doors,
            nats_users=issuer,
            revocations=revocations,
        )

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        brake = record.when_new(self.brake.look, mark=self.brake.mark)
        return {
            "heartbeats": self.heartbeats.run,
            "hearing": record.every(HEARING_PERIOD, Poke(), self._hear, "hearing"),
            "health": record.every(HEALTH_PERIOD, self.health.poke, self.health.sweep, "health"),
            "brake": record.every(BRAKE_PERIOD, Poke(), brake, "brake"),
            "revocations": record.every(REVOKING_PERIOD, self.revocations.poke, self.revocations.step, "revocations"),
        }

    async def _hear(self) -> None:
        """After the clock was set, health looks at all nodes again."""
        jumps = self.hearing.jumps
        await self.hearing.tick()
        if self.hearing.jumps != jumps:
            self.health.poke.ring()
