"""A NATS server with passwords, as an operator may run one by hand: Corral mints no users there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from corral.base.ids import new_secret
from corral.bus.minting import FRONTEND_SUBJECTS
from corral.bus.server import NatsServer

FRONTEND: Final = "frontend"
WORKER: Final = "worker"
PERMISSIONS: Final[Mapping[str, Mapping[str, list[str]]]] = {
    FRONTEND: {"publish": [*FRONTEND_SUBJECTS], "subscribe": [*FRONTEND_SUBJECTS]},
    WORKER: {
        "publish": [
            "nodes.*.backend.install.*.progress",
            "nodes.*.corral.replica.>",
            "nodes.*.corral.inventory",
            "_INBOX.frontend.>",
        ],
        "subscribe": ["nodes.>"],
    },
}
"""The lists of the guide for such a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passwords:
    """One for each kind of user, and one that servers of a cluster show each other."""

    frontend: str = field(repr=False, default_factory=new_secret)
    worker: str = field(repr=False, default_factory=new_secret)
    route: str = field(repr=False, default_factory=new_secret)


class PlainNats(NatsServer):
    """A server with two users, `frontend` and `worker`."""

    def __init__(self, *arguments: Any, passwords: Passwords | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.passwords = passwords or Passwords()

    @property
    def frontend_url(self) -> str:
        """Holds a password."""
        return self._with_login(FRONTEND, self.passwords.frontend)

    @property
    def worker_url(self) -> str:
        """Holds a password."""
        return self._with_login(WORKER, self.passwords.worker)

    @property
    def frontend_environment(self) -> dict[str, str]:
        return {"CORRAL_NATS_URL": self.frontend_url}

    def logins(self) -> Mapping[str, object]:
        users = [_user(FRONTEND, self.passwords.frontend), _user(WORKER, self.passwords.worker)]
        return {"authorization": {"users": users}}

    def _with_login(self, user: str, password: str) -> str:
        return self.url.replace("nats://", f"nats://{user}:{password}@")


def _user(name: str, password: str) -> dict[str, object]:
    return {"user": name, "password": password, "permissions": PERMISSIONS[name]}
