"""What the headers of a request say about its sender."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hmac import compare_digest

from corral.frontend.access.principals import Authenticator, Principal
from corral.wire.keys import API_KEY_HEADERS, bearer, hash_secret


def presented_key(headers: Mapping[str, str]) -> str | None:
    """A key from `Authorization: Bearer`, or from a header of its own as some client libraries send it."""
    return bearer(headers.get("authorization")) or next(filter(None, map(headers.get, API_KEY_HEADERS)), None)


async def principal_of(headers: Mapping[str, str], authenticator: Authenticator) -> Principal | None:
    presented = presented_key(headers)
    return None if presented is None else await authenticator.principal(presented)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClaim:
    """A worker's bearer, held against the node it speaks for.

    A node with a secret of its own listens to that secret only; the shared token speaks for nodes without one.
    """

    presented: str = field(repr=False)
    authenticator: Authenticator

    async def fits(self, secret_hash: str | None) -> bool:
        """Whether the bearer may speak for a node; `secret_hash` is None for a node without a secret."""
        if secret_hash is not None:
            return compare_digest(hash_secret(self.presented), secret_hash)
        return await self.authenticator.join_token(self.presented) is not None

    async def may_ask(self) -> bool:
        return await self.authenticator.join_token(self.presented) is not None
