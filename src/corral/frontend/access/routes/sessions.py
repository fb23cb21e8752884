"""Sessions of the web page: signing in and out, `/api/v1/session`, and all of them for administrators,
`/api/v1/sessions`."""

import socket
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from corral import __version__
from corral.base.errors import Conflict, InvalidInput
from corral.base.ids import SessionId, source_of
from corral.frontend.access.cross_site import foreign_origin, is_page_secure
from corral.frontend.access.decide import PERMISSIONS, Permission, Session
from corral.frontend.access.passwords import TooManyLogins
from corral.frontend.access.principals import Principal
from corral.frontend.access.routes.users import not_logged_in
from corral.frontend.access.sessions import NewSession, Visit
from corral.frontend.access.users import Guess, LoginRefused
from corral.frontend.api.parameters import switch
from corral.frontend.api.route import (
    MAX_LIMIT,
    Access,
    AdminContext,
    Caller,
    RouteSpec,
    answer,
    came_over_tls,
    cross_site_refusal,
    host_of_caller,
    no_content,
    read_body,
)
from corral.frontend.config import ControlConfig
from corral.wire.go_json import decode, format_time
from corral.wire.sessions import (
    EndedSession,
    InferenceKey,
    ListedSession,
    SessionView,
    SignIn,
    cookie_name,
    csrf_of,
    tokens_in,
)

_UNCACHED: Final = {"Cache-Control": "no-store"}


async def sign_in(context: AdminContext, request: Request, caller: Caller) -> Response:
    """Pages of other origins are refused here too: they could sign somebody in as somebody else."""
    if (problem := foreign_origin(request.headers, is_secure=came_over_tls(context, request))) is not None:
        return cross_site_refusal(problem)
    ask = decode(await read_body(request, context.config.max_body), SignIn)
    _check(ask)
    try:
        new = await _open(context, request, ask)
    except (LoginRefused, TooManyLogins) as error:
        return not_logged_in(error)
    view = _view(context, new.session, csrf_of(new.token), unconfirmed=new.unconfirmed)
    lifetime_seconds = int((new.session.expires_at - new.session.created_at).total_seconds())
    return answer(view, 201, {**_UNCACHED, "Set-Cookie": _cookie(context, request, new.token, lifetime_seconds)})


async def _open(context: AdminContext, request: Request, ask: SignIn) -> NewSession:
    access = context.access
    before = await access.authenticator.by_session(tokens_in(request.headers.get("cookie", "")))
    visit = Visit(
        source=source_of(host_of_caller(context, request)),
        agent=request.headers.get("user-agent", ""),
        session=None if before is None else before.session,
    )
    if ask.key:
        return await access.sessions.open_by_key(ask.key, visit)
    return await access.sessions.open_by_password(
        Guess(name=ask.name, password=ask.password, source=visit.source), visit
    )


def _check(ask: SignIn) -> None:
    if ask.key and (ask.name or ask.password):
        raise InvalidInput("key", "sign in with a key, or with a name and a password; not with both")
    if not ask.key and not (ask.name and ask.password):
        raise InvalidInput("name" if ask.password else "key", "say a key, or a name and its password")


async def show_session(context: AdminContext, request: Request, caller: Caller) -> Response:
    principal, session = _own(caller)
    return answer(_view(context, session, principal.csrf), headers=_UNCACHED)


async def sign_out(context: AdminContext, request: Request, caller: Caller) -> Response:
    _, session = _own(caller)
    unconfirmed = await context.access.sessions.sign_out(session)
    return _ended(session.id, unconfirmed, {"Set-Cookie": _cookie(context, request, "", 0)})


async def make_inference_key(context: AdminContext, request: Request, caller: Caller) -> Response:
    _, session = _own(caller)
    new = await context.access.sessions.issue_key(session)
    ends = new.record.expires_at or session.expires_at
    body = InferenceKey(key=new.key, expires_at=format_time(ends), unconfirmed_gateways=list(new.unconfirmed))
    return answer(body, 201, _UNCACHED)


async def list_sessions(context: AdminContext, request: Request, caller: Caller) -> Response:
    now, current = context.clock.now(), None if caller.principal is None else caller.principal.session
    access, with_all = context.access.sessions, request.query_params.get("all") == "true"
    sessions = await (access.newest(MAX_LIMIT) if with_all else access.active())
    return answer([_listed(each, now, is_own=current is not None and current.id == each.id) for each in sessions])


async def end_session(context: AdminContext, request: Request, caller: Caller) -> Response:
    id = SessionId(request.path_params["id"])
    return _ended(id, await context.access.sessions.end(id, by=caller.name), {})


def _own(caller: Caller) -> tuple[Principal, Session]:
    """The session that the caller's cookie belongs to."""
    principal = caller.principal
    if principal is None or principal.session is None:
        raise Conflict("this was called with a key, and not with the cookie of a session; POST /api/v1/session sets it")
    return principal, principal.session


def _ended(id: SessionId, unconfirmed: Sequence[str], headers: dict[str, str]) -> Response:
    if unconfirmed:
        return answer(EndedSession(id=id, unconfirmed_gateways=list(unconfirmed)), 202, headers)
    response = no_content()
    response.headers.update(headers)
    return response


def _cookie(context: AdminContext, request: Request, token: str, lasts_seconds: int) -> str:
    """Pages cannot read it, other sites cannot send it, and where TLS is spoken nothing else carries it."""
    name = cookie_name(context.nodes.fleet_key.pin)
    form = f"{name}={token}; Path=/; Max-Age={lasts_seconds}; HttpOnly; SameSite=Strict"
    return f"{form}; Secure" if came_over_tls(context, request) or is_page_secure(request.headers) else form


def _view(context: AdminContext, session: Session, csrf: str, *, unconfirmed: Sequence[str] = ()) -> SessionView:
    scopes = session.scopes
    return SessionView(
        id=session.id,
        user=session.user_name,
        key_name=session.key_name,
        scopes=sorted(scopes),
        permissions=sorted({permission for scope in scopes for permission in PERMISSIONS[scope]}),
        models=None if session.models is None else sorted(session.models),
        csrf=csrf,
        expires_at=format_time(session.expires_at),
        fleet=_fleet_name(context.config),
        version=__version__,
        unconfirmed_gateways=list(unconfirmed),
    )


def _fleet_name(config: ControlConfig) -> str:
    return urlsplit(config.public_url).hostname or socket.gethostname()


def _listed(session: Session, now: datetime, *, is_own: bool) -> ListedSession:
    state = "ended" if session.ended_at is not None else "active" if session.is_valid(now) else "expired"
    return ListedSession(
        id=session.id,
        user=session.user_name,
        key_name=session.key_name,
        key_id="" if session.key is None else session.key.id,
        scopes=sorted(session.scopes),
        source=session.source,
        agent=session.agent,
        created_at=format_time(session.created_at),
        expires_at=format_time(session.expires_at),
        state=state,
        is_own=is_own,
    )


_self = partial(RouteSpec, access=Permission.SELF)
_manage = partial(RouteSpec, access=Permission.KEYS_MANAGE)
_BY_KEY = {409: "called with a key, and not with the cookie of a session"}
_UNSURE = {202: "ended; some gateways did not confirm it in time"}

ROUTES: Sequence[RouteSpec] = [
    RouteSpec(
        "POST",
        "/api/v1/session",
        sign_in,
        "Sign in to the web page with a key, or with name and password. Sets the cookie of the session.",
        access=Access.PUBLIC,
        takes=SignIn,
        gives=SessionView,
        codes={
            201: "signed in; gateways know the session",
            400: "neither a key, nor name and password",
            401: "the key, the name or the password is wrong",
            403: "the key is not for people, or a page of another origin asks",
            429: "too many wrong ones; wait",
        },
    ),
    _self(
        "GET",
        "/api/v1/session",
        show_session,
        "Who is signed in, what they may do, and the secret that changes need.",
        gives=SessionView,
        codes={200: "the session of the cookie", **_BY_KEY},
    ),
    _self(
        "DELETE",
        "/api/v1/session",
        sign_out,
        "Sign out: end the session of the cookie. Answers when the gateways refuse it.",
        gives=EndedSession,
        codes={204: "signed out", **_UNSURE, **_BY_KEY},
    ),
    RouteSpec(
        "POST",
        "/api/v1/session/inference-key",
        make_inference_key,
        "Get a key of scope inference for the page's chat. It lasts 15 minutes, and ends with the session.",
        access=Permission.INFERENCE,
        gives=InferenceKey,
        codes={201: "a key, shown this once", **_BY_KEY},
    ),
    _manage(
        "GET",
        "/api/v1/sessions",
        list_sessions,
        "Who is signed in to the web page, the newest first.",
        gives=list[ListedSession],
        query={
            "all": switch(
                f"`true` also lists sessions that are over, {MAX_LIMIT} at most, as long as the record is kept"
            )
        },
        codes={200: "a list"},
    ),
    _manage(
        "DELETE",
        "/api/v1/sessions/{id}",
        end_session,
        "End somebody's session. Answers when the gateways refuse it.",
        gives=EndedSession,
        codes={204: "ended", **_UNSURE, 404: "no such session", 409: "it is over already"},
    ),
]
