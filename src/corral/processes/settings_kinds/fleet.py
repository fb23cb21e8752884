"""What only a fleet has: logins of registries, labels, budgets and galleries."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from corral.base.errors import InvalidInput
from corral.domain.labels import label_problem
from corral.domain.vram_budget import VramBudget
from corral.processes.settings_kinds.basic import SettingKind, Unforgivable

if TYPE_CHECKING:
    from corral.domain.gallery import GallerySource
    from corral.wire.install import Gallery


def _read_registry_auth(text: str) -> str:
    from corral.oci.auth import read_auths

    read_auths(text)
    return text


REGISTRY_AUTH: Final = SettingKind(
    placeholder="JSON",
    allowed="a Docker configuration with `auths` that hold a login",
    read=_read_registry_auth,
)


def _read_labels(text: str) -> Mapping[str, str]:
    labels: dict[str, str] = {}
    for pair in (part.strip() for part in text.split(",")):
        if not pair:
            continue
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(pair)
        labels[key.strip()] = value.strip()
    return _checked_labels(labels)


def _labels_of_table(table: Mapping[str, object]) -> Mapping[str, str]:
    labels = {key: value for key, value in table.items() if isinstance(value, str)}
    if len(labels) != len(table):
        raise ValueError(table)
    return _checked_labels(labels)


def _checked_labels(labels: dict[str, str]) -> Mapping[str, str]:
    if problem := label_problem(labels):
        raise ValueError(problem)
    return labels


LABELS: Final = SettingKind(
    placeholder="KEY=VALUE[,…]",
    allowed="pairs such as zone=a,disk=fast, or in a file a table of texts",
    read=_read_labels,
    read_table=_labels_of_table,
)


def _read_vram_budget(text: str) -> str:
    VramBudget.read(text)
    return text.strip()


VRAM_BUDGET: Final = SettingKind(
    placeholder="BUDGET", allowed="a share or a size such as 80%, 0.8, 12GB or 8GiB", read=_read_vram_budget
)


def _read_galleries(text: str) -> "tuple[GallerySource, ...]":
    from corral.wire.install import read_galleries

    try:
        found = read_galleries(text.strip())
    except InvalidInput:
        raise ValueError from None
    if found is None:
        raise ValueError
    return _checked_galleries(found)


def _galleries_of_tables(tables: Sequence[object]) -> "tuple[GallerySource, ...]":
    import msgspec

    from corral.wire.install import Gallery

    try:
        return _checked_galleries(msgspec.convert(tables, type=list[Gallery]))
    except msgspec.ValidationError:
        raise ValueError from None


def _checked_galleries(found: "Sequence[Gallery]") -> "tuple[GallerySource, ...]":
    from corral.galleries.config import sources_of
    from corral.galleries.places import read_place

    sources = sources_of(found)
    names = [source.name.lower() for source in sources if source.name]
    if len(set(names)) < len(names) or not all(name.isprintable() and "@" not in name for name in names):
        raise ValueError
    for source in sources:
        try:
            read_place(source.url)
            for mirror in source.urls[1:]:
                read_place(mirror)
        except InvalidInput:
            raise ValueError from None
        _check_policy(source)
    return sources


def _check_policy(source: "GallerySource") -> None:
    """What is wrong with a policy is told: it holds no secrets, and nobody would find it in a list of galleries."""
    from corral.oci.signatures.policy import read_policy

    try:
        read_policy(source.verification)
    except InvalidInput as error:
        raise Unforgivable("backend_galleries", f"the gallery {source.name!r}: {error}") from None


_LOGIN = re.compile(r"://[^/\"\s]*@")

GALLERIES: Final = SettingKind(
    placeholder="JSON",
    allowed='a JSON list such as [{"name": "mine", "url": "https://example.org/index.yaml"}], each name once, with '
    "URLs that begin with http://, https://, file:///, oci:// or github:, or are corral:builtin",
    read=_read_galleries,
    read_tables=_galleries_of_tables,
    shown=lambda text: _LOGIN.sub("://***@", text),
    holds_password=lambda text: _LOGIN.search(text) is not None,
)
