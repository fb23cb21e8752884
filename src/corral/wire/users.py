"""Users: what administrators see of them, and what people say to log in."""

import msgspec

from corral.wire.keys import CreatedKey


class UserView(msgspec.Struct, kw_only=True):
    """A user without the password."""

    name: str
    role: str
    """`admin`, `operator`, `viewer` or `inference`."""
    has_password: bool
    """Whether the user can log in; others have keys only."""
    is_disabled: bool
    created_at: str
    created_by: str
    active_keys: int


class UserChanged(UserView, kw_only=True):
    """A user after a change."""

    revoked_keys: list[str] = []
    """Ids of the keys that ended with the change."""
    unconfirmed_gateways: list[str] = []
    """Gateways that did not say within two seconds that they refuse those keys; they may still work there."""


class CreateUser(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/users`."""

    name: str
    role: str
    password: str = ""
    """Empty for a user who shall have keys only."""


class ChangeUser(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Body of `PATCH /api/v1/users/{name}`. What is left out stays."""

    role: str | None = None
    password: str | None = None
    """An empty password removes it: then the user has keys only."""
    disabled: bool | None = None


class LoginAsk(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/login`."""

    name: str
    password: str
    expires_in: str = ""
    """A duration such as `1h`, at most what the setting `login_lifetime` says; empty for that."""


class LoggedIn(CreatedKey, kw_only=True):
    """A key of the user, with all that the role gives, for a short time."""


class ChangePassword(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/login/password`."""

    name: str
    password: str
    new_password: str


class WhoAmI(msgspec.Struct, kw_only=True):
    """What a key is, as its bearer sees it."""

    key: str
    """The name of the key."""
    key_id: str
    user: str
    """Empty for a key of nobody in particular."""
    scopes: list[str]
    permissions: list[str]
    models: list[str] | None
    """The only models that it may ask; null: all."""
    expires_at: str | None
