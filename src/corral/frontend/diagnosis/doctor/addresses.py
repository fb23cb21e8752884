"""Can nodes be reached where they say they are? Both directions: from here, and as workers themselves found out."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from corral.base.ids import NodeId
from corral.base.words import listed
from corral.frontend.api.route import AdminContext
from corral.frontend.diagnosis.doctor import OK, PROBLEM, WARNING
from corral.frontend.diagnosis.doctor.fleet_tls import has_tls
from corral.frontend.nodes.decide.node import Node, NodeStatus, NodeType, SeenNode
from corral.frontend.nodes.decide.reports import with_host
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.wire.nodes import WORKER_HEADER, Finding

_EACH_SECONDS: Final = 2.0
_ALL_SECONDS: Final = 4.0
"""In all, since a diagnostic has five; whatever was not tried by then is not judged."""
_AT_ONCE: Final = 100
_MOST_BYTES: Final = 4096
BACKEND_PORTS: Final = "61000 to 65535"
"""Ports of backends with all defaults on Linux: from the base port on, without those of outgoing connections."""


class _Reachable(msgspec.Struct, frozen=True, kw_only=True):
    """An address that must answer."""

    title: str
    host: str
    port: int
    me: str | None = None
    """What its HTTP server says of itself; None: it is enough that somebody listens."""


async def check_addresses(context: AdminContext) -> Finding:
    nodes = [seen for seen in await context.nodes.fleet.all() if _is_expected(seen)]
    # Behind a door with TLS nobody reaches a replica's own port, and the door is tried as the node's HTTP address.
    names = {seen.node.id: seen.node.name for seen in nodes if not has_tls(seen.node)}
    loaded = [replica for replica in await context.serving.replicas.living() if replica.state is ReplicaState.LOADED]
    places = [*_of_nodes(seen.node for seen in nodes), *_of_replicas(loaded, names)]
    bad = [problem for problem in await _tried(places) if problem]
    problems = [f"{seen.node.name}: {problem}" for seen in nodes for problem in seen.node.problems]
    if bad:
        return Finding(
            check="addresses",
            level=PROBLEM,
            summary=f"{len(bad)} of {len(places)} do not answer this frontend: {listed(bad)}",
            remedy="Let this machine reach their HTTP port (one below the base port) and their backends' ports "
            f"({BACKEND_PORTS} by default, see the worker's max_port), or correct what their workers advertise "
            "(advertise_address, advertise_http_address).",
        )
    if problems:
        return Finding(
            check="addresses",
            level=WARNING,
            summary=f"workers report: {listed(problems, most=3)}",
            remedy="`corral nodes show NODE` has the whole text.",
        )
    return Finding(check="addresses", level=OK, summary=f"{len(places)} tried from here, all answer")


def _is_expected(seen: SeenNode) -> bool:
    is_there = seen.status in (NodeStatus.HEALTHY, NodeStatus.DRAINING)
    return is_there and seen.node.type is NodeType.BACKEND


def _of_nodes(nodes: Iterable[Node]) -> list[_Reachable]:
    """The HTTP servers of workers; those of Corral's say which worker they are."""
    places = []
    for node in nodes:
        if (reached := _host_and_port(with_host(node.http_address))) is not None:
            me = str(node.facts.incarnation) if node.peer is not None else None
            places.append(
                _Reachable(title=f"{node.name} at {node.http_address}", host=reached[0], port=reached[1], me=me)
            )
    return places


def _of_replicas(replicas: Iterable[Replica], names: Mapping[NodeId, str]) -> list[_Reachable]:
    places = []
    for replica in replicas:
        address = urlsplit(replica.url).netloc or replica.address
        reached = None if replica.url.startswith("unix:") else _host_and_port(address)
        if replica.node_id in names and reached is not None:
            title = f"{replica.model} on {names[replica.node_id]} at {address}"
            places.append(_Reachable(title=title, host=reached[0], port=reached[1]))
    return places


def _host_and_port(address: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(f"//{address}")
        return (parts.hostname, parts.port) if parts.hostname and parts.port else None
    except ValueError:
        return None


async def _tried(places: Sequence[_Reachable]) -> list[str]:
    """What is wrong with each; empty for those that answer, and for those that there was no time for."""
    turns = asyncio.Semaphore(_AT_ONCE)
    problems = [""] * len(places)

    async def one(number: int, place: _Reachable) -> None:
        async with turns:
            problems[number] = await _trouble(place)

    try:
        async with asyncio.timeout(_ALL_SECONDS), asyncio.TaskGroup() as group:
            for number, place in enumerate(places):
                group.create_task(one(number, place), name=f"reach {place.title}")
    except TimeoutError:
        pass
    return problems


async def _trouble(place: _Reachable) -> str:
    try:
        async with asyncio.timeout(_EACH_SECONDS):
            reader, writer = await asyncio.open_connection(place.host, place.port)
            try:
                if place.me is None:
                    return ""
                writer.write(f"GET /healthz HTTP/1.1\r\nHost: {place.host}\r\nConnection: close\r\n\r\n".encode())
                answer = (await reader.read(_MOST_BYTES)).lower()
            finally:
                writer.close()
    except TimeoutError:
        return f"{place.title} (no answer within {_EACH_SECONDS:g} s)"
    except (OSError, UnicodeError) as error:
        return f"{place.title} ({getattr(error, 'strerror', None) or error})"
    header = f"\r\n{WORKER_HEADER}: ".lower().encode()
    if header in answer and header + place.me.lower().encode() + b"\r\n" not in answer:
        return f"{place.title} (another worker answers there)"
    return ""
