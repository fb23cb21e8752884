"""API keys for administrators: `/api/v1/keys`."""

from datetime import datetime, timedelta
from functools import partial

from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import InvalidInput
from corral.base.ids import KeyId
from corral.base.words import parse_duration
from corral.frontend.api.route import Access, AdminContext, Caller, RouteSpec, answer, no_content, read_body
from corral.wire.go_json import decode, format_time
from corral.wire.keys import ApiKey, CreatedKey, CreateKey, KeyView, RevokedKey, Scope

_LONGEST_NAME = 128
_LONGEST_LIFE = timedelta(days=3650)


async def list_keys(context: AdminContext, request: Request, caller: Caller) -> Response:
    now = context.clock.now()
    return answer([key_view(record, now) for record in await context.access.key_ring.list()])


async def create_key(context: AdminContext, request: Request, caller: Caller) -> Response:
    wish = decode(await read_body(request, context.config.max_body), CreateKey)
    name = wish.name.strip()
    if not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise InvalidInput("name", f"must have 1 to {_LONGEST_NAME} printable characters")
    scopes, lifetime = _scopes(wish.scopes), _lifetime(wish.expires_in)
    new = await context.access.key_ring.create(name, scopes, by=caller.name, lifetime=lifetime)
    view = asdict(key_view(new.record, context.clock.now()))
    return answer(CreatedKey(**view, key=new.key, unconfirmed_gateways=list(new.unconfirmed)), 201)


async def revoke_key(context: AdminContext, request: Request, caller: Caller) -> Response:
    key_id = KeyId(request.path_params["id"])
    unconfirmed = await context.access.key_ring.revoke(key_id, by=caller.name)
    if unconfirmed:
        return answer(RevokedKey(id=key_id, unconfirmed_gateways=list(unconfirmed)), 202)
    return no_content()


def key_view(record: ApiKey, now: datetime) -> KeyView:
    state = "revoked" if record.revoked_at else "active" if record.is_valid(now) else "expired"
    return KeyView(
        id=record.id,
        name=record.name,
        scopes=sorted(record.scopes),
        created_at=format_time(record.created_at),
        created_by=record.created_by,
        expires_at=None if record.expires_at is None else format_time(record.expires_at),
        revoked_at=None if record.revoked_at is None else format_time(record.revoked_at),
        state=state,
    )


def _scopes(texts: list[str]) -> frozenset[Scope]:
    if not texts:
        raise InvalidInput("scopes", f"name at least one of {', '.join(Scope)}")
    try:
        return frozenset(Scope(text) for text in texts)
    except ValueError:
        unknown = next(text for text in texts if text not in set(Scope))
        raise InvalidInput("scopes", f"must be of {', '.join(Scope)}, got {unknown[:40]!r}") from None


def _lifetime(text: str) -> timedelta | None:
    if not text:
        return None
    try:
        lifetime = parse_duration(text)
    except ValueError as error:
        raise InvalidInput("expires_in", str(error)) from error
    if not timedelta(0) < lifetime <= _LONGEST_LIFE:
        raise InvalidInput("expires_in", f"must be more than 0 and at most {_LONGEST_LIFE.days}d, got {text}")
    return lifetime


_admin = partial(RouteSpec, access=Access.ADMIN)

ROUTES = [
    _admin(
        "GET",
        "/api/v1/keys",
        list_keys,
        "All keys, without their secret parts.",
        gives=list[KeyView],
        codes={200: "a list"},
    ),
    _admin(
        "POST",
        "/api/v1/keys",
        create_key,
        "Make a key; the answer shows it, once, when the gateways know it.",
        takes=CreateKey,
        gives=CreatedKey,
        codes={201: "made", 400: "a field makes no sense; the answer names it"},
    ),
    _admin(
        "DELETE",
        "/api/v1/keys/{id}",
        revoke_key,
        "Revoke a key; it stays on the list. Answers when the gateways refuse it.",
        gives=RevokedKey,
        codes={
            204: "revoked",
            202: "revoked; some gateways did not confirm it in time",
            404: "no such key",
            409: "it is revoked already, or is the last administrator key",
        },
    ),
]
