"""`corral nodes cards` and `card`: the GPUs of one node, one by one."""

from collections.abc import Sequence
from typing import Final

import click

from corral.base.errors import InvalidInput, NotFound
from corral.cli.client import api_path
from corral.cli.connection import connected, open_client
from corral.cli.names import find_node, node_argument
from corral.cli.options import CorralCommand
from corral.cli.output import Column, answer, json_option, plain, print_json_list, show, table
from corral.cli.units import share
from corral.wire.nodes import CardView, NodeDetail


@click.command("cards", cls=CorralCommand)
@node_argument
@json_option
@connected
def list_cards(node: str, as_json: bool) -> None:
    """List the GPUs of a node, with the replicas that may use each."""
    client = open_client()
    detail = find_node(client, node)
    cards = client.get(api_path("nodes", detail.id, "cards"), list[CardView])
    if as_json:
        print_json_list(cards)
    else:
        show(table(_CARD_COLUMNS, cards) if cards else f"{detail.name} tells of no GPU one by one.")


@click.command("card", cls=CorralCommand)
@node_argument
@click.argument("card")
@click.option("--out/--in", "is_out", default=None, help="Take it out of service, or put it back.")
@json_option
@connected
def put_card(node: str, card: str, is_out: bool | None, as_json: bool) -> None:
    """Take one GPU of a node out of service, or put it back.

    CARD is its id, or a unique beginning of it, as `corral nodes cards` shows it. What uses the GPU goes on; nothing
    new is given to it.
    """
    if is_out is None:
        raise InvalidInput("card", "say whether with --out or --in")
    client = open_client()
    detail = find_node(client, node)
    cards = client.get(api_path("nodes", detail.id, "cards"), list[CardView])
    id = _find_card(card, detail, cards).id
    changed = client.put(api_path("nodes", detail.id, "cards", id), NodeDetail, {"is_out": is_out})
    where = "out of service; what uses it goes on" if is_out else "in service"
    answer(changed, f"{id} of {changed.name} ({changed.id}) is {where}", as_json=as_json)


def _find_card(word: str, node: NodeDetail, cards: Sequence[CardView]) -> CardView:
    """The card of this id, or the only one whose id begins like that."""
    fitting = [card for card in cards if card.id == word] or [card for card in cards if card.id.startswith(word)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise InvalidInput("CARD", f"{word!r} means several: {', '.join(card.id for card in fitting)}")
    has = ", ".join(card.id for card in cards) or "none"
    raise NotFound(f"{node.name} has no GPU {word!r}; it has {has}")


_CARD_COLUMNS: Final[Sequence[Column[CardView]]] = (
    Column(title="GPU", cell=lambda card: "–" if card.index is None else str(card.index)),
    Column(title="ID", cell=lambda card: plain(card.id)),
    Column(title="NAME", cell=lambda card: plain(card.name or card.vendor), least_width=60),
    Column(title="FREE", cell=lambda card: share(card.free, card.total) + (" (RAM)" if card.shares_ram else "")),
    Column(title="REPLICAS", cell=lambda card: plain(", ".join(card.replicas) or "–"), least_width=80),
    Column(title="STATE", cell=lambda card: _card_state(card)),
)


def _card_state(card: CardView) -> str:
    if not card.is_out:
        return "in service"
    return "[yellow]out of service[/]" if card.total else "[yellow]out of service, gone[/]"
