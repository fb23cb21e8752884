"""Certificates of the fleet, for workers and gateways that ask for one."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import AccessDenied, InvalidInput
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.frontend.access.decide import Permission
from corral.frontend.api.route import Access, AdminContext, Caller, RouteSpec, answer, read_body
from corral.frontend.nodes.routes.localai_self import checked_node
from corral.wire.fleet_tls import LARGEST_REQUEST, CertificateAsk, FleetRole, IssuedCertificate


async def for_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    """Only for a node with a secret of its own: a token that many share must not become a certificate."""
    try:
        node_id = await checked_node(context, request, caller)
    except AccessDenied as error:
        return answer({"error": {"code": error.code, "message": error.message}}, 401)
    node = (await context.nodes.fleet.get(node_id)).node
    if node.secret_hash is None:
        raise AccessDenied("only a node with a secret of its own gets a certificate")
    await context.nodes.contacts.of(node_id)  # NodePending until somebody approves it
    return answer(context.nodes.tls.issue((await _ask(request)).csr, FleetRole.NODE, node_id=node_id))


async def for_gateway(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(context.nodes.tls.issue((await _ask(request)).csr, FleetRole.GATEWAY))


async def _ask(request: Request) -> CertificateAsk:
    try:
        return msgspec.json.decode(await read_body(request, LARGEST_REQUEST), type=CertificateAsk)
    except UNREADABLE_JSON as error:
        raise InvalidInput("", f"the body does not ask for a certificate: {error}") from error


_OFF = "TLS inside the fleet is off at this frontend"

ROUTES = [
    RouteSpec(
        "POST",
        "/api/v1/nodes/{id}/certificate",
        for_node,
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
            409: f"the node waits for approval, or {_OFF}",
            413: "the body is too large",
        },
    ),
    RouteSpec(
        "POST",
        "/api/v1/gateway/certificate",
        for_gateway,
        "A gateway gets a certificate for its key, with which workers know it.",
        access=Permission.GATEWAY_SERVE,
        takes=CertificateAsk,
        gives=IssuedCertificate,
        codes={200: "signed", 400: "the request for it cannot be used", 409: _OFF, 413: "the body is too large"},
    ),
]
