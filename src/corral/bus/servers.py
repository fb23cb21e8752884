"""The NATS servers that a client knows, and in which order it tries them."""

import random
from collections import deque
from collections.abc import Sequence

from corral.bus.config import Endpoint, parse_endpoints


class Servers:
    """The NATS servers of the configuration, and those that their cluster reported to the last connection."""

    def __init__(self, urls: str) -> None:
        """Raise InvalidInput for URLs that can never work; none at all is possible."""
        configured = parse_endpoints(urls) if urls else ()
        self._configured = random.sample(configured, len(configured))  # so that a fleet spreads over a cluster
        self._endpoints = deque(self._configured)

    def __len__(self) -> int:
        return len(self._endpoints)

    @property
    def are_unknown(self) -> bool:
        return not self._configured

    @property
    def have_tls(self) -> bool:
        return any(endpoint.tls for endpoint in self._configured)

    def next(self) -> Endpoint:
        """Return the server to try now. After a loss, and after a failure, the others come first."""
        endpoint = self._endpoints[0]
        self._endpoints.rotate(-1)
        return endpoint

    def learn(self, siblings: Sequence[Endpoint]) -> None:
        """Remember the cluster's other servers as a link knew them, and forget those that it no longer did."""
        by_address = {(sibling.host, sibling.port): sibling for sibling in siblings}
        current = by_address.keys() | {(endpoint.host, endpoint.port) for endpoint in self._configured}
        remaining = {(endpoint.host, endpoint.port): endpoint for endpoint in self._endpoints}
        remaining = {address: endpoint for address, endpoint in remaining.items() if address in current}
        new = [sibling for address, sibling in by_address.items() if address not in remaining]
        self._endpoints = deque([*new, *remaining.values()])
