"""Joining: invitations for administrators, the fleet's proof of who it is, the check before a machine joins, and the
certificates of those that joined.
"""

from datetime import datetime, timedelta
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import AccessDenied, InvalidInput
from corral.base.ids import InvitationId, source_of
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.base.words import counted, parse_duration
from corral.frontend.access.decide import Permission
from corral.frontend.api.route import (
    Access,
    AdminContext,
    Caller,
    RouteSpec,
    answer,
    host_of_caller,
    no_content,
    read_body,
)
from corral.frontend.nodes.decide.invitations import Invitation, refuse_ended
from corral.frontend.nodes.routes.localai_self import checked_node
from corral.wire.fleet_tls import LARGEST_REQUEST, CertificateAsk, FleetRole, IssuedCertificate
from corral.wire.go_json import decode, format_time
from corral.wire.joining import (
    MAX_NONCE,
    MIN_NONCE,
    CreatedInvitation,
    CreateInvitation,
    FleetProof,
    InvitationView,
    JoinCheck,
    JoinCheckAnswer,
    JoiningView,
)
from corral.wire.keys import JOIN_CHECK, hash_secret
from corral.wire.labels import label_problem

LONGEST_LIFE: Final = timedelta(days=30)
MOST_USES: Final = 10_000


async def list_invitations(context: AdminContext, request: Request, caller: Caller) -> Response:
    now = context.clock.now()
    return answer([invitation_view(invitation, now) for invitation in await context.nodes.invitations.list()])


async def create_invitation(context: AdminContext, request: Request, caller: Caller) -> Response:
    wish = decode(await read_body(request, context.config.max_body), CreateInvitation)
    if not 1 <= wish.uses <= MOST_USES:
        raise InvalidInput("uses", f"must be from 1 to {MOST_USES}, got {wish.uses}")
    if problem := label_problem(wish.labels):
        raise InvalidInput("labels", problem)
    new = await context.nodes.invitations.create(
        by=caller.name,
        lifetime=_lifetime(wish.expires_in),
        uses=wish.uses,
        labels=wish.labels,
        auto_approve=wish.approve,
    )
    created = CreatedInvitation(
        **asdict(invitation_view(new.invitation, context.clock.now())),
        code=new.code,
        pin=context.nodes.fleet_key.pin,
        url=_url(context),
        nats_urls=_nats_urls(context),
    )
    return answer(created, 201)


async def revoke_invitation(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.nodes.invitations.revoke(InvitationId(request.path_params["id"]), by=caller.name)
    return no_content()


async def prove_fleet(context: AdminContext, request: Request, caller: Caller) -> Response:
    nonce = request.query_params.get("nonce", "")
    if not MIN_NONCE <= len(nonce) <= MAX_NONCE or not nonce.isascii() or not nonce.isalnum():
        raise InvalidInput("nonce", f"must be {MIN_NONCE} to {MAX_NONCE} letters and digits, got {nonce[:40]!r}")
    return answer(await context.nodes.fleet_key.prove(nonce, at=context.clock.now()))


async def check_join(context: AdminContext, request: Request, caller: Caller) -> Response:
    """Uses up no invitation, and admits nobody."""
    host = host_of_caller(context, request)
    presented, source = "" if caller.claim is None else caller.claim.presented, source_of(host)
    sentence = ""
    is_known = await context.access.authenticator.join_token(presented) is not None
    if not is_known and not await context.nodes.admission.knows_secret(hash_secret(presented)):
        invitation = await context.nodes.invitations.find(presented, source=source)
        if invitation is None:
            return answer(
                {"error": {"code": "access_denied", "message": "this token or secret opens nothing here"}}, 401
            )
        refuse_ended(invitation, context.clock.now())
        uses = counted(invitation.max_uses - invitation.uses, "more time")
        sentence = f"the join code can be used {uses} until {format_time(invitation.expires_at.replace(microsecond=0))}"
    context.nodes.check_limit.take(source, "too many checks")
    wish = decode(await read_body(request, context.config.max_body, at_most=JOIN_CHECK.max_body), JoinCheck)
    dialled = await context.nodes.dialling.try_all(wish.addresses, source=host)
    return answer(JoinCheckAnswer(seen_from=host, dialled=dialled, invitation=sentence, nats_urls=_nats_urls(context)))


async def show_joining(context: AdminContext, request: Request, caller: Caller) -> Response:
    policy = context.config.admission
    view = JoiningView(
        url=_url(context),
        nats_urls=_nats_urls(context),
        pin=context.nodes.fleet_key.pin,
        by_token=policy.registration_by_token,
        approves_by_token=policy.registration_by_token and policy.auto_approve,
    )
    return answer(view)


def _url(context: AdminContext) -> str:
    config = context.config
    host = f"[{config.host}]" if ":" in config.host else config.host
    return config.public_url or f"{'http' if config.tls_cert is None else 'https'}://{host}:{config.port}"


def _nats_urls(context: AdminContext) -> list[str]:
    offer = context.nodes.nats_users.offer
    return [] if offer is None else offer.urls


def invitation_view(invitation: Invitation, now: datetime) -> InvitationView:
    return InvitationView(
        id=invitation.id,
        state=invitation.state(now).value,
        labels=dict(invitation.labels),
        approve=invitation.auto_approve,
        max_uses=invitation.max_uses,
        uses=invitation.uses,
        created_at=format_time(invitation.created_at),
        created_by=invitation.created_by,
        expires_at=format_time(invitation.expires_at),
        revoked_at=None if invitation.revoked_at is None else format_time(invitation.revoked_at),
    )


def _lifetime(text: str) -> timedelta:
    try:
        lifetime = parse_duration(text)
    except ValueError as error:
        raise InvalidInput("expires_in", str(error)) from error
    if not timedelta(0) < lifetime <= LONGEST_LIFE:
        raise InvalidInput("expires_in", f"must be more than 0 and at most {LONGEST_LIFE.days}d, got {text[:40]}")
    return lifetime


_admitting = partial(RouteSpec, access=Permission.NODES_ADMIT)


async def certificate_for_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    """Only for a node with a secret of its own: a token that many share must not become a certificate."""
    try:
        node_id = await checked_node(context, request, caller)
    except AccessDenied as error:
        return answer({"error": {"code": error.code, "message": error.message}}, 401)
    node = (await context.nodes.fleet.get(node_id)).node
    if node.secret_hash is None:
        raise AccessDenied("only a node with a secret of its own gets a certificate")
    await context.nodes.contacts.of(node_id)  # NodePending until somebody approves it
    return answer(context.nodes.tls.issue((await _certificate_ask(request)).csr, FleetRole.NODE, node_id=node_id))


async def certificate_for_gateway(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(context.nodes.tls.issue((await _certificate_ask(request)).csr, FleetRole.GATEWAY))


async def _certificate_ask(request: Request) -> CertificateAsk:
    try:
        return msgspec.json.decode(await read_body(request, LARGEST_REQUEST), type=CertificateAsk)
    except UNREADABLE_JSON as error:
        raise InvalidInput("", f"the body does not ask for a certificate: {error}") from error


_TLS_OFF = "TLS inside the fleet is off at this frontend"

ROUTES = [
    RouteSpec(
        "GET",
        "/api/v1/invitations",
        list_invitations,
        "Invitations of machines, newest first, without their codes.",
        access=Permission.NODES_READ,
        gives=list[InvitationView],
        codes={200: "a list"},
    ),
    _admitting(
        "POST",
        "/api/v1/invitations",
        create_invitation,
        "Make a code that lets machines join; the answer shows it, once.",
        takes=CreateInvitation,
        gives=CreatedInvitation,
        codes={201: "made", 400: "a field makes no sense; the answer names it", 409: "too many are open"},
    ),
    _admitting(
        "DELETE",
        "/api/v1/invitations/{id}",
        revoke_invitation,
        "Revoke an invitation; it stays on the list, and machines that came with it stay.",
        codes={204: "revoked", 404: "no such invitation", 409: "it is revoked already"},
    ),
    RouteSpec(
        "GET",
        "/api/v1/joining",
        show_joining,
        "Where machines find this fleet, and whether the registration token lets them in. It has no secret.",
        access=Permission.NODES_READ,
        gives=JoiningView,
        codes={200: "always"},
    ),
    RouteSpec(
        "GET",
        "/api/v1/fleet",
        prove_fleet,
        "Who this fleet is, signed: machines ask it before they send a secret.",
        access=Access.PUBLIC,
        gives=FleetProof,
        query={"nonce": f"{MIN_NONCE} to {MAX_NONCE} random letters and digits of the caller"},
        codes={200: "the proof", 400: "the nonce cannot be used"},
    ),
    RouteSpec(
        "POST",
        "/api/v1/join-checks",
        check_join,
        "Would this machine be reached? Calls its own address, and says how that went; nothing is changed.",
        access=Access.WORKER,
        takes=JoinCheck,
        gives=JoinCheckAnswer,
        codes={
            200: "tried",
            400: "an address makes no sense",
            401: "neither a join code, a registration token nor a node's own secret",
            413: "the body is too large",
            429: "too many checks, or wrong codes, from this source address",
        },
    ),
    RouteSpec(
        "POST",
        "/api/v1/nodes/{id}/certificate",
        certificate_for_node,
        "A worker gets a certificate for its key, with which gateways, control and other workers know it.",
        access=Access.WORKER,
        takes=CertificateAsk,
        gives=IssuedCertificate,
        codes={
            200: "signed",
            400: "the request for it cannot be used; the message says why",
            401: "not this node's own secret",
            403: "the node has no secret of its own",
            404: "no such node",
            409: f"the node waits for approval, or {_TLS_OFF}",
            413: "the body is too large",
        },
    ),
    RouteSpec(
        "POST",
        "/api/v1/gateway/certificate",
        certificate_for_gateway,
        "A gateway gets a certificate for its key, with which workers know it.",
        access=Permission.GATEWAY_SERVE,
        takes=CertificateAsk,
        gives=IssuedCertificate,
        codes={200: "signed", 400: "the request for it cannot be used", 409: _TLS_OFF, 413: "the body is too large"},
    ),
]
