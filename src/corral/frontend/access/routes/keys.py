"""API keys for administrators: `/api/v1/keys`."""

from datetime import datetime, timedelta

from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import InvalidInput, NotFound
from corral.base.ids import KeyId
from corral.base.words import parse_duration
from corral.frontend.access.decide import LOGIN, Permission, User
from corral.frontend.access.keys import KeyOwner
from corral.frontend.api.parameters import switch
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer, no_content, read_body
from corral.wire.go_json import decode, format_time
from corral.wire.keys import ApiKey, CreatedKey, CreateKey, KeyView, RevokedKey, Scope

_LONGEST_NAME = 128
_LONGEST_MODEL = 512
_MOST_MODELS = 256
_LONGEST_LIFE = timedelta(days=3650)


async def list_keys(context: AdminContext, request: Request, caller: Caller) -> Response:
    now, with_all = context.clock.now(), request.query_params.get("all") == "true"
    records, used = await context.access.key_ring.list(), await context.access.key_use.last()
    listed = (record for record in records if with_all or record.session_id is None)
    return answer([key_view(record, now, used_at=used.get(record.id)) for record in listed])


async def create_key(context: AdminContext, request: Request, caller: Caller) -> Response:
    wish = decode(await read_body(request, context.config.max_body), CreateKey)
    name = wish.name.strip()
    if not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise InvalidInput("name", f"must have 1 to {_LONGEST_NAME} printable characters")
    scopes, lifetime = _scopes(wish.scopes), read_lifetime(wish.expires_in)
    owner = KeyOwner(user=await _owner(context, caller, wish.user), models=_models(wish.models, scopes))
    if owner.user is not None:
        _check_owner(owner.user, name, scopes)
    new = await context.access.key_ring.create(name, scopes, by=caller.name, lifetime=lifetime, owner=owner)
    view = asdict(key_view(new.record, context.clock.now()))
    return answer(CreatedKey(**view, key=new.key, unconfirmed_gateways=list(new.unconfirmed)), 201)


async def revoke_key(context: AdminContext, request: Request, caller: Caller) -> Response:
    key_id = KeyId(request.path_params["id"])
    unconfirmed = await context.access.key_ring.revoke(key_id, by=caller.name)
    if unconfirmed:
        return answer(RevokedKey(id=key_id, unconfirmed_gateways=list(unconfirmed)), 202)
    return no_content()


def key_view(record: ApiKey, now: datetime, *, used_at: datetime | None = None) -> KeyView:
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
        user=record.user_name,
        models=None if record.models is None else sorted(record.models),
        session=record.session_id or "",
        last_used_at=None if used_at is None else format_time(used_at),
    )


async def _owner(context: AdminContext, caller: Caller, name: str | None) -> User | None:
    """The user whose the key shall be: by default the one who asks, so that a key goes with its maker."""
    caller_name = None if caller.principal is None else caller.principal.user_name
    name = caller_name if name is None else name
    if not name:
        return None
    try:
        return await context.access.users.get(name)
    except NotFound as error:
        raise InvalidInput("user", error.message) from error


def _check_owner(user: User, name: str, scopes: frozenset[Scope]) -> None:
    if name == LOGIN:
        raise InvalidInput("name", f"must not be {LOGIN}: that is what keys from logins are called")
    if not user.covers(scopes):
        problem = f"{user.name} has the role {user.role}, which does not give all of {', '.join(sorted(scopes))}"
        raise InvalidInput("scopes", f"{problem}; a key of nobody in particular has `user` empty")


def _models(names: list[str], scopes: frozenset[Scope]) -> frozenset[str] | None:
    if not names:
        return None
    if scopes != {Scope.INFERENCE}:
        raise InvalidInput("models", "limits keys of the scope inference alone: others may change models")
    if len(names) > _MOST_MODELS:
        raise InvalidInput("models", f"names {len(names)} models; at most {_MOST_MODELS}")
    bad = next((name for name in names if not name or len(name) > _LONGEST_MODEL or not name.isprintable()), None)
    if bad is not None:
        raise InvalidInput("models", f"has {bad[:40]!r}; a name has 1 to {_LONGEST_MODEL} printable characters")
    return frozenset(names)


def _scopes(texts: list[str]) -> frozenset[Scope]:
    if not texts:
        raise InvalidInput("scopes", f"name at least one of {', '.join(Scope)}")
    try:
        return frozenset(Scope(text) for text in texts)
    except ValueError:
        unknown = next(text for text in texts if text not in set(Scope))
        raise InvalidInput("scopes", f"must be of {', '.join(Scope)}, got {unknown[:40]!r}") from None


def read_lifetime(text: str) -> timedelta | None:
    if not text:
        return None
    try:
        lifetime = parse_duration(text)
    except ValueError as error:
        raise InvalidInput("expires_in", str(error)) from error
    if not timedelta(0) < lifetime <= _LONGEST_LIFE:
        raise InvalidInput("expires_in", f"must be more than 0 and at most {_LONGEST_LIFE.days}d, got {text}")
    return lifetime


ROUTES = [
    RouteSpec(
        "GET",
        "/api/v1/keys",
        list_keys,
        "All keys, without their secret parts.",
        access=Permission.KEYS_MANAGE,
        gives=list[KeyView],
        query={"all": switch("`true` also lists the short-lived keys that the web page has for its chat")},
        codes={200: "a list"},
    ),
    RouteSpec(
        "POST",
        "/api/v1/keys",
        create_key,
        "Make a key; the answer shows it, once, when the gateways know it.",
        access=Permission.KEYS_MANAGE,
        takes=CreateKey,
        gives=CreatedKey,
        codes={201: "made", 400: "a field makes no sense; the answer names it"},
    ),
    RouteSpec(
        "DELETE",
        "/api/v1/keys/{id}",
        revoke_key,
        "Revoke a key; it stays on the list. Answers when the gateways refuse it.",
        access=Permission.KEYS_MANAGE,
        gives=RevokedKey,
        codes={
            204: "revoked",
            202: "revoked; some gateways did not confirm it in time",
            404: "no such key",
            409: "it is revoked already, or is the last administrator key",
        },
    ),
]
