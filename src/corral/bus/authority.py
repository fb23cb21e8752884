"""Who signs for users of the embedded NATS server: an operator, its system account, and the fleet's account.

Made at the first start and kept in the server's private folder. The server's own copy of an account's claims is in
its resolver's folder: what is revoked there stays revoked when the server starts again.
"""

import base64
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import msgspec

from corral.base.errors import InvalidInput, PathNotUsable
from corral.base.private_files import is_there, make_private_directory, read_private, write_private
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.base.values import PartlyPrinted

KEYS_FILE: Final = "authority.json"
SYSTEM_CREDS: Final = "system.creds"
RESOLVER_FOLDER: Final = "accounts"
LOGINS_FILE: Final = "logins.conf"
SETTINGS_FILE: Final = "frontend.env"
_UNLIMITED: Final = {"subs": -1, "data": -1, "payload": -1}
_ACCOUNT_LIMITS: Final = {**_UNLIMITED, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
MOST_CONNECTIONS: Final = 65_536
"""What a NATS server allows without a setting."""
FOR_SYSTEM: Final = 64
"""Connections of a server that its fleet's account leaves to the system account, with which control ends users."""


class _AuthorityKeys(msgspec.Struct, kw_only=True, frozen=True):
    """The file: seeds, and what they signed of themselves."""

    operator_seed: str
    operator_jwt: str
    account_seed: str
    account: str
    account_jwt: str
    system_account: str
    system_jwt: str
    system_creds: str


class Authority(PartlyPrinted, frozen=True, kw_only=True):
    """What the server must know, and what control needs to mint users and to end them."""

    unprinted = ("operator_seed", "account_seed", "server_config")

    operator_seed: str
    account_seed: str
    account: str
    system_creds: Path
    """File with the user of the system account, which may give the server new claims."""
    server_config: Mapping[str, object]

    @property
    def frontend_environment(self) -> dict[str, str]:
        """What a frontend needs to mint users and to end them. Holds secrets."""
        return {
            "CORRAL_NATS_ACCOUNT_SEED": self.account_seed,
            "CORRAL_NATS_OPERATOR_SEED": self.operator_seed,
            "CORRAL_NATS_SYSTEM_CREDS": str(self.system_creds),
        }

    @classmethod
    def load_or_create(cls, directory: Path) -> Self:
        """Raise PathNotUsable when the file of the keys is damaged."""
        path = make_private_directory(directory) / KEYS_FILE
        data = read_private(path)
        if data is None:
            keys = _new_keys()
            write_private(path, msgspec.json.encode(keys))
        else:
            try:
                keys = msgspec.json.decode(data, type=_AuthorityKeys)
            except UNREADABLE_JSON as error:
                problem = f"{path} is damaged; restore it, or delete it to have a new NATS account"
                raise PathNotUsable(problem) from error
        accounts = make_private_directory(directory / RESOLVER_FOLDER)
        for public, jwt in ((keys.account, keys.account_jwt), (keys.system_account, keys.system_jwt)):
            if read_private(accounts / f"{public}.jwt") is None:
                write_private(accounts / f"{public}.jwt", jwt.encode())
        creds = directory / SYSTEM_CREDS
        if read_private(creds) != keys.system_creds.encode():
            write_private(creds, keys.system_creds.encode())
        return cls(
            operator_seed=keys.operator_seed,
            account_seed=keys.account_seed,
            account=keys.account,
            system_creds=creds,
            server_config={
                "operator": keys.operator_jwt,
                "system_account": keys.system_account,
                "resolver": {"type": "full", "dir": str(accounts), "allow_delete": False},
            },
        )


def limit_connections(directory: Path, most: int) -> None:
    """Let the fleet's account have no more connections than this at a server. What was revoked stays revoked.
    PathNotUsable when the account's claims are damaged.

    NATS limits the connections of an account, not those of a user: one node may take all of them. The system account
    must be able to connect all the same, or nobody could end that node.
    """
    keys = msgspec.json.decode((directory / KEYS_FILE).read_bytes(), type=_AuthorityKeys)
    file = directory / RESOLVER_FOLDER / f"{keys.account}.jwt"
    jwt = (read_private(file) or keys.account_jwt.encode()).decode(errors="replace")
    if _connections_in(jwt) == most:
        return
    from corral.bus.nkey_claims import ClaimsKey, read_claims  # noqa: PLC0415 - as in `_new_keys`

    try:
        claims = read_claims(jwt)
        limits = {**claims["nats"]["limits"], "conn": most}
        issued = max(int(time.time()), int(claims.get("iat") or 0) + 1)
    except (InvalidInput, KeyError, TypeError, ValueError) as error:
        problem = f"{file} is damaged; restore it: it says which nodes were shut out"
        raise PathNotUsable(problem) from error
    changed = {**claims, "iat": issued, "nats": {**claims["nats"], "limits": limits}}
    write_private(file, ClaimsKey(keys.operator_seed, "operator").sign(changed).encode())


def _connections_in(jwt: str) -> int | None:
    """The limit of connections in an account's claims; None where they cannot be read."""
    body = jwt.split(".")[1:2] or [""]
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(body[0] + "=" * (-len(body[0]) % 4)))
        limit: int = claims["nats"]["limits"]["conn"]
    except (ValueError, TypeError, KeyError, *UNREADABLE_JSON):
        return None
    return limit


def write_for_own_server(directory: Path) -> tuple[Path, Path]:
    """Make keys for NATS servers that somebody else starts, unless they are there. Return what each of the servers
    includes in its configuration, and the settings of frontends; the second holds secrets."""
    authority = Authority.load_or_create(directory.absolute())
    keys = msgspec.json.decode((directory / KEYS_FILE).read_bytes(), type=_AuthorityKeys)
    logins, settings = directory / LOGINS_FILE, directory / SETTINGS_FILE
    text = f"""operator: "{keys.operator_jwt}"
system_account: "{keys.system_account}"
resolver {{ type: full, dir: "./{RESOLVER_FOLDER}", allow_delete: false }}
resolver_preload {{
  {keys.account}: "{keys.account_jwt}"
  {keys.system_account}: "{keys.system_jwt}"
}}
"""
    write_private(logins, text.encode())
    lines = [f"{name}={value}" for name, value in authority.frontend_environment.items()]
    write_private(settings, ("\n".join(lines) + "\n").encode())
    return logins, settings


def has_keys(directory: Path) -> bool:
    """Whether there is a file of keys, whole or damaged."""
    return is_there(directory / KEYS_FILE)


def replace_keys(directory: Path) -> Authority:
    """Make a new operator and new accounts in place of those that are there, of which nothing is kept.

    Servers and frontends go on with the old ones until they start again. The keys are replaced first: the server's own
    copies of claims say who was shut out, and without them the old account would let those in. Broken off after that,
    what is left of the old account is no use to anybody, since the new operator has not signed it.
    """
    write_private(directory / KEYS_FILE, msgspec.json.encode(_new_keys()))
    accounts = directory / RESOLVER_FOLDER
    if accounts.exists():
        shutil.rmtree(accounts)
    return Authority.load_or_create(directory)


def _new_keys() -> _AuthorityKeys:
    from corral.bus.nkey_claims import ClaimsKey  # noqa: PLC0415 - 8 MB that are needed once in the life of a fleet

    operator, account, system, user = (ClaimsKey.make(kind) for kind in ("operator", "account", "account", "user"))
    now = int(time.time())

    def about(name: str, subject: ClaimsKey, nats: Mapping[str, object]) -> dict[str, object]:
        return {"iat": now, "name": name, "sub": subject.public, "nats": {**nats, "version": 2}}

    def account_claims(name: str, key: ClaimsKey, connections: int) -> str:
        limits = {**_ACCOUNT_LIMITS, "conn": connections}
        return operator.sign(about(name, key, {"type": "account", "limits": limits}))

    owner = {"system_account": system.public, "type": "operator"}
    system_user = system.sign(about("corral-system", user, {**_UNLIMITED, "pub": {}, "sub": {}, "type": "user"}))
    return _AuthorityKeys(
        operator_seed=operator.seed,
        operator_jwt=operator.sign(about("corral", operator, owner)),
        account_seed=account.seed,
        account=account.public,
        account_jwt=account_claims("corral-fleet", account, MOST_CONNECTIONS - FOR_SYSTEM),
        system_account=system.public,
        system_jwt=account_claims("corral-system", system, -1),
        system_creds=creds_text(system_user, user.seed),
    )


def creds_text(jwt: str, seed: str) -> str:
    """Return a user in the form that NATS's own tools write and read."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
