"""Joining a frontend: what the worker says of itself, how long it retries, and whether it is a member."""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import AccessDenied, CorralError, InvalidInput, PeerRefused, PeerUnavailable
from corral.base.ids import NodeId, new_secret
from corral.base.retry import Backoff
from corral.base.values import PartlyPrinted
from corral.base.words import format_duration
from corral.bus.credentials import UserJwt
from corral.wire.backends import InstallRequest
from corral.wire.labels import REPLICA_SLOTS
from corral.wire.registration import (
    PENDING,
    CardReport,
    CorralHello,
    CorralWelcome,
    Feature,
    NatsOffer,
    RegisterRequest,
    RegisterResponse,
)
from corral.worker.hardware.gpus import MeasuredGpu
from corral.worker.hardware.machine import Gauge, Measurement
from corral.worker.membership.addresses import Addresses
from corral.worker.membership.trust import OtherFleet

log = logging.getLogger(__name__)

WRONG_TOKEN: Final = frozenset({401, 403})
NO_ROUTE: Final = frozenset({404, 405})
"""What a proxy answers whose frontend is not there yet, and a LocalAI frontend that is not in distributed mode."""
_PATIENCE: Final = timedelta(seconds=30)
"""A frontend that starts together with its workers needs some of it."""


class Outage:
    """One thing that may fail for hours while it is tried every few seconds."""

    def __init__(
        self, log: logging.Logger, clock: Clock, *, event: str, subject: str, patience: timedelta = timedelta(0)
    ) -> None:
        """An outage shorter than `patience` is nothing to be alarmed about: others may just be starting."""
        self._clock = clock
        self._log = log
        self._event = event
        self._subject = subject
        self._patience = patience
        self._began: float | None = None
        self._logged: tuple[int, str] | None = None

    def failed(self, problem: str) -> None:
        now = self._clock.monotonic()
        if self._began is None:
            self._began = now
        is_short = now - self._began < self._patience.total_seconds()
        level = logging.INFO if is_short else logging.WARNING
        if (level, problem) == self._logged:
            return
        self._logged = (level, problem)
        self._log.log(level, "%s: %s", self._subject, problem, extra={"event": f"{self._event}.failing"})

    def worked(self) -> None:
        self._began = None
        if self._logged is None:
            return
        self._logged = None
        self._log.info("%s: works now", self._subject, extra={"event": f"{self._event}.works"})


class AcceptedRegistration(PartlyPrinted, frozen=True, kw_only=True):
    """A registration that a frontend accepted."""

    unprinted = ("bearer", "nats_user", "nats_authorities")

    node_id: NodeId
    bearer: str
    """What to present from now on."""
    status: str = ""
    """How the frontend saw this node when it answered; empty when it did not say."""
    is_corral: bool = False
    """The frontend is Corral; otherwise it is LocalAI."""
    features: frozenset[str] = frozenset()
    """Extensions that the frontend named, too."""
    nats_user: UserJwt | None = None
    """NATS credentials from the frontend, if it provides them."""
    nats_urls: str = ""
    """Where NATS is, if the frontend says so, and with which authorities it is checked."""
    nats_authorities: str = ""

    @property
    def waits_for_nats_user(self) -> bool:
        """The frontend makes users of NATS, and this node is not approved yet."""
        return self.nats_user is None and Feature.NATS_USER in self.features and self.status == PENDING


class ProcessToken(NamedTuple):
    """What callers of a process must present over gRPC."""

    text: str
    is_own: bool
    """Whether the token was made for this process, so that frontends do not know it yet."""


class Presence:
    """The membership at this moment; None before the first registration and while the frontend has forgotten us."""

    def __init__(self) -> None:
        self._member: AcceptedRegistration | None = None
        self.bearer = ""
        """Bearer of the last membership, which backends keep expecting while the frontend has forgotten us."""
        self._last_was_corral = False
        self.is_leaving = False
        self.on_change: list[Callable[[], None]] = []
        """Called with every new membership, and when one ends."""

    @property
    def member(self) -> AcceptedRegistration | None:
        return self._member

    @member.setter
    def member(self, member: AcceptedRegistration | None) -> None:
        self._member = member
        if member is not None:
            self.bearer = member.bearer
            self._last_was_corral = member.is_corral
        for listener in self.on_change:
            listener()

    def process_token(self, request: InstallRequest) -> ProcessToken:
        """What callers of a process must present that is started for this request.

        Frontends of ours ask for a token of its own, and call no process without a model. Those from before there were
        such tokens present this node's secret, and LocalAI's the token that all its nodes share.
        """
        has_own = request.wants_own_token or (self._last_was_corral and not request.model_id)
        return ProcessToken(new_secret() if has_own else self.bearer, is_own=has_own)

    @property
    def is_with_localai(self) -> bool:
        """A LocalAI frontend has us."""
        return self._member is not None and not self._member.is_corral


class Profile(PartlyPrinted, frozen=True, kw_only=True):
    """Static facts that a worker sends at every registration, in addition to measurements."""

    unprinted = ("token", "hello")

    name: str
    addresses: Addresses
    token: str
    hello: CorralHello
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    max_replicas_per_model: int = 1
    vram_budget: str = ""
    has_code: bool = False
    """The token is a join code, of which a refusal is final: all frontends of a fleet know the same ones."""
    was_admitted: bool = False
    """An earlier process of this worker was registered, so a frontend may know its secret."""


class RegistrationApi(Protocol):
    async def register(self, body: RegisterRequest) -> RegisterResponse: ...


def card_reports(cards: Sequence[MeasuredGpu]) -> list[CardReport]:
    """The report about each GPU that a Corral frontend gets."""
    return [
        CardReport(
            id=card.id,
            index=card.index,
            name=card.name,
            vendor=card.vendor.value,
            total=card.total or 0,
            free=UNSET if card.free is None else card.free,
            shares_ram=card.shares_ram,
        )
        for card in cards
    ]


def registration_body(profile: Profile, measured: Measurement) -> RegisterRequest:
    """Build the body as LocalAI's worker does: the GPU vendor always, amounts if they could be read.

    If free video memory is unknown, all of it counts as free, because no model is loaded yet.
    """
    slots = max(profile.max_replicas_per_model, 1)
    total_vram, available_vram = measured.gpus.total_vram, measured.gpus.available_vram
    if available_vram is None:
        available_vram = total_vram
    return RegisterRequest(
        name=profile.name,
        address=profile.addresses.advertise,
        http_address=profile.addresses.advertise_http,
        token=profile.token,
        total_vram=UNSET if total_vram is None else total_vram,
        available_vram=UNSET if available_vram is None else available_vram,
        gpu_vendor=measured.gpus.vendor,
        gpu_compute_capability=measured.gpus.compute_capability,
        capability=measured.capability,
        total_ram=measured.ram.total if measured.ram else UNSET,
        available_ram=measured.ram.available if measured.ram else UNSET,
        total_disk=measured.disk.total if measured.disk else UNSET,
        available_disk=measured.disk.available if measured.disk else UNSET,
        max_replicas_per_model=slots,
        vram_budget=profile.vram_budget,
        labels={**profile.labels, REPLICA_SLOTS: str(slots)},
        corral=replace(profile.hello, cards=card_reports(measured.cards) or None),
    )


def membership(answer: RegisterResponse, profile: Profile) -> AcceptedRegistration:
    """What an accepted registration makes of this worker. The node's own secret counts only where it is understood."""
    welcome = answer.corral if isinstance(answer.corral, CorralWelcome) else None
    offer = welcome.nats if welcome is not None and isinstance(welcome.nats, NatsOffer) else NatsOffer()
    features = frozenset(welcome.features if welcome is not None else ())
    user = None
    if answer.nats_jwt or answer.nats_user_seed:
        try:
            user = UserJwt(answer.nats_jwt, answer.nats_user_seed)
        except InvalidInput as error:  # the node is registered all the same
            extra = {"event": "registration.no_nats_user"}
            log.warning("the frontend's NATS user is of no use: %s", error, extra=extra)
    return AcceptedRegistration(
        node_id=NodeId(answer.id),
        bearer=profile.hello.secret if Feature.NODE_SECRET in features else profile.token,
        status=answer.status,
        is_corral=welcome is not None,
        features=features,
        nats_user=user,
        nats_urls=",".join(offer.urls),
        nats_authorities=offer.tls_ca,
    )


class Registrar:
    """Registers this worker, as often as it takes. A first registration is given up where trying again cannot help."""

    def __init__(
        self,
        *,
        frontend: RegistrationApi,
        profile: Profile,
        gauge: Gauge,
        clock: Clock,
        backoff: Backoff,
        token_patience: timedelta,
    ) -> None:
        """`token_patience` is how long the token of a first registration may be refused."""
        self._frontend = frontend
        self._profile = profile
        self._gauge = gauge
        self._clock = clock
        self._backoff = backoff
        self._token_patience = token_patience
        self._was_admitted = profile.was_admitted
        self._has_joined = False
        self._outage = Outage(log, clock, event="registration", subject="registration", patience=_PATIENCE)

    async def join(self) -> AcceptedRegistration:
        """The first registration. AccessDenied or PeerRefused when trying again would not help."""
        return await self._until_accepted(self._give_up_if_final)

    async def rejoin(self) -> AcceptedRegistration:
        """A later registration, after the frontend forgot us. Never gives up."""
        return await self._until_accepted(lambda *_: None)

    async def _until_accepted(
        self, give_up: Callable[[PeerRefused | OtherFleet, timedelta], None]
    ) -> AcceptedRegistration:
        """Try again and again. `give_up` gets each refusal, with the time since the token was first refused, and may
        raise."""
        refused_at: float | None = None
        attempt = 0
        while True:
            try:
                return await self.attempt()
            except (PeerUnavailable, PeerRefused) as error:
                now = self._clock.monotonic()
                if isinstance(error, PeerRefused) and error.status in WRONG_TOKEN and refused_at is None:
                    refused_at = now
                if isinstance(error, PeerRefused | OtherFleet):
                    give_up(error, timedelta(seconds=now - (now if refused_at is None else refused_at)))
                self._outage.failed(_advised(error).message)
            attempt += 1
            await self._clock.sleep(self._backoff.delay(attempt).total_seconds())

    async def attempt(self) -> AcceptedRegistration:
        """Register once, with current measurements."""
        body = registration_body(self._profile, await self._gauge.measure())
        by_secret = replace(body, token=self._profile.hello.secret)
        if not self._was_admitted:
            answer = await self._frontend.register(body)
        elif self._profile.has_code:
            answer = await self._come_back(by_secret, body)
        else:
            # The token may have changed since we joined, but a frontend that knows our secret accepts that.
            answer = await self._register_by_either(body, by_secret)
        self._was_admitted = self._has_joined = True
        self._outage.worked()
        return membership(answer, self._profile)

    async def _come_back(self, by_secret: RegisterRequest, by_code: RegisterRequest) -> RegisterResponse:
        """The code is for a node that was removed, or still waits: used codes, presented at each start, count as wrong
        ones after a while. A process whose code has done its work does not present it again."""
        if self._has_joined:
            return await self._frontend.register(by_secret)
        try:
            answer = await self._frontend.register(by_secret)
        except PeerRefused as refused:
            if refused.status not in WRONG_TOKEN:
                raise
            return await self._frontend.register(by_code)
        if answer.status != PENDING:
            return answer
        try:
            return await self._frontend.register(by_code)  # it may approve
        except (PeerRefused, PeerUnavailable) as error:
            log.warning("the join code changes nothing: %s", error.message, extra={"event": "registration.no_code"})
            return answer

    async def _register_by_either(self, first: RegisterRequest, second: RegisterRequest) -> RegisterResponse:
        try:
            return await self._frontend.register(first)
        except PeerRefused as refused:
            if refused.status not in WRONG_TOKEN:
                raise
            try:
                return await self._frontend.register(second)
            except PeerRefused:
                raise refused from None

    def _give_up_if_final(self, error: PeerRefused | OtherFleet, waited: timedelta) -> None:
        if isinstance(error, OtherFleet):
            raise AccessDenied(error.message) from error
        if error.status in WRONG_TOKEN and self._profile.has_code:
            raise AccessDenied(error.message) from error
        if error.status in WRONG_TOKEN and self._profile.token == self._profile.hello.secret:
            problem = "the fleet does not know this machine any more; join again with a code of `corral nodes invite`"
            ways = "`corral worker --join URL` asks for it on a terminal; elsewhere give it --code-file or"
            raise AccessDenied(
                f"{error.message}: {problem}. {ways} --code-descriptor, or set CORRAL_JOIN_CODE"
            ) from error
        if error.status in NO_ROUTE:
            return
        left = self._token_patience - waited
        if error.status not in WRONG_TOKEN or left <= timedelta(0):
            raise _advised(error) from error
        message = "registration is refused, and tried for %s more: %s"
        log.warning(message, format_duration(left), _advised(error).message, extra={"event": "registration.refused"})


def _advised(error: PeerRefused | PeerUnavailable) -> CorralError:
    """The refusal, with what to do about it where that is known."""
    if not isinstance(error, PeerRefused):
        return error
    if error.status in WRONG_TOKEN:
        return AccessDenied(
            f"{error.message}; check the registration token (LOCALAI_REGISTRATION_TOKEN or "
            "CORRAL_REGISTRATION_TOKEN): it must be the frontend's"
        )
    if error.status not in NO_ROUTE:
        return error
    return PeerRefused(
        f"{error.message}; if its frontend is not just starting, check the URL (LOCALAI_REGISTER_TO): it must lead "
        "to a frontend, and a LocalAI one must run in distributed mode",
        status=error.status,
    )
