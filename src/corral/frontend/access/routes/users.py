"""Users for administrators, `/api/v1/users`; logging in and out, `/api/v1/login`; and who one is, `/api/v1/me`."""

from collections.abc import Sequence
from functools import partial

from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import Conflict
from corral.base.ids import source_of
from corral.frontend.access.decide import LOGIN, PERMISSIONS, Permission, User
from corral.frontend.access.passwords import TooManyLogins
from corral.frontend.access.routes.keys import key_view, read_lifetime
from corral.frontend.access.users import ChangedUser, Guess, LoginRefused, UserWish
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
from corral.wire.go_json import decode, format_time
from corral.wire.users import (
    ChangePassword,
    ChangeUser,
    CreateUser,
    LoggedIn,
    LoginAsk,
    UserChanged,
    UserView,
    WhoAmI,
)


async def list_users(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer([user_view(user, keys) for user, keys in await context.access.users.list()])


async def create_user(context: AdminContext, request: Request, caller: Caller) -> Response:
    wish = decode(await read_body(request, context.config.max_body), CreateUser)
    user = await context.access.users.create(wish.name, wish.role, wish.password, by=caller.name)
    return answer(user_view(user, 0), 201)


async def change_user(context: AdminContext, request: Request, caller: Caller) -> Response:
    wish = decode(await read_body(request, context.config.max_body), ChangeUser)
    changed = await context.access.users.change(
        request.path_params["name"],
        UserWish(role=wish.role, password=wish.password, is_disabled=wish.disabled),
        by=caller.name,
    )
    return await _changed(context, changed)


async def delete_user(context: AdminContext, request: Request, caller: Caller) -> Response:
    changed = await context.access.users.delete(request.path_params["name"], by=caller.name)
    return answer(_changed_view(changed, 0))


async def log_in(context: AdminContext, request: Request, caller: Caller) -> Response:
    ask = decode(await read_body(request, context.config.max_body), LoginAsk)
    guess = Guess(name=ask.name, password=ask.password, source=source_of(host_of_caller(context, request)))
    try:
        new = await context.access.users.login(guess, lifetime=read_lifetime(ask.expires_in))
    except (LoginRefused, TooManyLogins) as error:
        return not_logged_in(error)
    view = asdict(key_view(new.record, context.clock.now()))
    return answer(LoggedIn(**view, key=new.key, unconfirmed_gateways=list(new.unconfirmed)), 201)


async def change_password(context: AdminContext, request: Request, caller: Caller) -> Response:
    ask = decode(await read_body(request, context.config.max_body), ChangePassword)
    guess = Guess(name=ask.name, password=ask.password, source=source_of(host_of_caller(context, request)))
    try:
        await context.access.users.change_password(guess, ask.new_password)
    except (LoginRefused, TooManyLogins) as error:
        return not_logged_in(error)
    return no_content()


async def log_out(context: AdminContext, request: Request, caller: Caller) -> Response:
    key = None if caller.principal is None else caller.principal.key
    if key is None or key.user_id is None or key.name != LOGIN:
        raise Conflict("this key does not come from a login; `corral keys revoke` ends others")
    await context.access.key_ring.revoke(key.id, by=caller.name)
    return no_content()


async def who_am_i(context: AdminContext, request: Request, caller: Caller) -> Response:
    scopes = frozenset() if caller.principal is None else caller.principal.scopes
    key = None if caller.principal is None else caller.principal.key
    session = None if caller.principal is None else caller.principal.session
    expires_at = session.expires_at if session is not None else None if key is None else key.expires_at
    return answer(
        WhoAmI(
            key=caller.name if key is None else key.name,
            key_id="" if key is None else key.id,
            user="" if caller.principal is None else caller.principal.user_name,
            scopes=sorted(scopes),
            permissions=sorted({permission for scope in scopes for permission in PERMISSIONS[scope]}),
            models=None if key is None or key.models is None else sorted(key.models),
            expires_at=None if expires_at is None else format_time(expires_at),
        )
    )


def not_logged_in(error: LoginRefused | TooManyLogins) -> Response:
    """The answer to a wrong key or password, or to too many of them."""
    body = {"error": {"code": error.code, "message": error.message}}
    if isinstance(error, TooManyLogins):
        return answer(body, 429, {"Retry-After": str(error.wait_seconds)})
    return answer(body, 401)


async def _changed(context: AdminContext, changed: ChangedUser) -> Response:
    keys = {user.id: keys for user, keys in await context.access.users.list()}
    return answer(_changed_view(changed, keys.get(changed.user.id, 0)))


def _changed_view(changed: ChangedUser, active_keys: int) -> UserChanged:
    return UserChanged(
        **asdict(user_view(changed.user, active_keys)),
        revoked_keys=[key.id for key in changed.ended],
        unconfirmed_gateways=list(changed.unconfirmed),
    )


def user_view(user: User, active_keys: int) -> UserView:
    return UserView(
        name=user.name,
        role=user.role or "",
        has_password=user.password_hash is not None,
        is_disabled=user.disabled_at is not None,
        created_at=format_time(user.created_at),
        created_by=user.created_by,
        active_keys=active_keys,
    )


_route = partial(RouteSpec, access=Permission.USERS_MANAGE)
_self = partial(RouteSpec, access=Permission.SELF)
_public = partial(RouteSpec, "POST", access=Access.PUBLIC)
_BAD = {400: "a field makes no sense; the answer names it"}
_UNKNOWN = {404: "no user has this name"}
_KEEPS = {409: "nobody could administer any more, or somebody else changed the user just now"}
_WRONG = {401: "the name or the password is wrong, or the user is disabled", 429: "too many wrong passwords; wait"}

ROUTES: Sequence[RouteSpec] = [
    _route(
        "GET",
        "/api/v1/users",
        list_users,
        "All users by name, and how many keys each has.",
        gives=list[UserView],
        codes={200: "a list"},
    ),
    _route(
        "POST",
        "/api/v1/users",
        create_user,
        "Add a user with a role; with a password the user can log in.",
        takes=CreateUser,
        gives=UserView,
        codes={201: "added", **_BAD, 409: "there is a user of this name"},
    ),
    _route(
        "PATCH",
        "/api/v1/users/{name}",
        change_user,
        "Give a user another role or password, disable or enable it. Keys that it may not have any more are revoked.",
        takes=ChangeUser,
        gives=UserChanged,
        codes={200: "the user after it, and the keys that ended", **_BAD, **_UNKNOWN, **_KEEPS},
    ),
    _route(
        "DELETE",
        "/api/v1/users/{name}",
        delete_user,
        "Delete a user, and revoke all its keys.",
        gives=UserChanged,
        codes={200: "the user as it was, and the keys that ended", **_UNKNOWN, **_KEEPS},
    ),
    _public(
        "/api/v1/login",
        log_in,
        "Get a key for name and password. It has the user's role, and lasts as long as `login_lifetime` says.",
        takes=LoginAsk,
        gives=LoggedIn,
        codes={201: "a key", **_BAD, **_WRONG},
    ),
    _public(
        "/api/v1/login/password",
        change_password,
        "Change one's own password. Keys from earlier logins end.",
        takes=ChangePassword,
        codes={204: "changed", **_BAD, **_WRONG, 409: "somebody else changed the user just now"},
    ),
    _self(
        "DELETE",
        "/api/v1/login",
        log_out,
        "Log out: revoke the key from a login with which this is called.",
        codes={204: "revoked", 409: "the key does not come from a login"},
    ),
    _self(
        "GET",
        "/api/v1/me",
        who_am_i,
        "Whose key this is, and what it may do.",
        gives=WhoAmI,
        codes={200: "the key"},
    ),
]
