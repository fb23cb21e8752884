"""Pulling a model: what proves that it is there, who joins whom, and what is refused before the first byte. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from corral.base.errors import Conflict, InvalidInput
from corral.base.setting_kinds import size, whole
from corral.base.settings import setting
from corral.base.words import format_size
from corral.frontend.models.decide.removal import is_among, is_no_weight
from corral.frontend.models.decide.stored import ModelChangeKind, ModelRevision, StoredModel
from corral.frontend.operations.decide.intent import Before, Intent, IntentState, Proven, Sighting, Unproven
from corral.frontend.operations.decide.reasons import ReasonCode, because
from corral.galleries.model_entries import ModelFile
from corral.hubs.plans import PlannedFile, PullPlan
from corral.hubs.references import GalleryReference, parse_reference

BY_DIGEST: Final = "by digest"
BY_SIZE: Final = "whole; nobody promised a digest of some files"
"""How a finished pull is proven, from the strongest to the weakest."""
_TIB: Final = "1048576GiB"
_MOST_NAMES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PullPolicy:
    """How models are downloaded, and how much room they may take."""

    at_once: int = setting(
        whole(1, 64),
        """Models that a frontend downloads at the same time; others wait for their turn. 2: more would share one line,
        and each of them would be there later.""",
        name="pulls_at_once",
        default=2,
    )
    connections: int = setting(
        whole(1, 64),
        """Connections of the download of one file of a model. One connection rarely fills a long line; servers refuse
        clients with many.""",
        name="download_connections",
        default=8,
    )
    bytes_per_second: int = setting(
        size("0", _TIB),
        """Bytes per second that the download of one model may take. 0, without limit, because most have the line to
        themselves.""",
        name="download_rate",
        default="0",
        default_text="no limit",
    )
    free_bytes: int = setting(
        size("0", _TIB),
        """What must stay free on the disk of the models directory. 512 MiB: logs and databases often share it.""",
        name="models_min_free",
        default="512MiB",
    )
    quota_bytes: int = setting(
        size("0", _TIB),
        """How much all files in the models directory may take, in bytes. A pull that would need more is refused. 0:
        as much as the disk has.""",
        name="models_quota",
        default="0",
        default_text="no limit",
    )


class PullAsk(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants to be pulled."""

    reference: str
    name: str = ""
    """What the model shall be called; empty: as it is called where it comes from."""
    build: str = ""
    """Which of several builds; empty: the best that fits."""
    definition: str = ""
    """Where the definition of a model is that no gallery has; then the reference says no more."""
    overrides: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Laid over the configuration that it would have."""
    files: tuple[ModelFile, ...] = ()
    """Files to download besides those of the reference."""
    by: str
    may_trust: bool = False
    """Whether the caller may let code run that comes from no gallery."""
    idempotency_key: str = ""


def payload_of(plan: PullPlan) -> dict[str, Any]:
    """The plan as it is stored with the operation. What else could have been taken is left out."""
    document: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(plan, choices=()))
    return document


def plan_of(payload: Mapping[str, Any]) -> PullPlan:
    return msgspec.convert(payload, PullPlan)


def is_same(plan: PullPlan, other: PullPlan) -> bool:
    """Whether two plans end with the same files and the same model; what was learned of the files does not matter."""
    files, other_files = ([msgspec.structs.replace(file, shape=None) for file in each.files] for each in (plan, other))
    return (plan.name, plan.config, files) == (other.name, other.config, other_files)


# What is there.


def has_model(plan: PullPlan, stored: StoredModel | None, history: Iterable[ModelRevision]) -> bool:
    """Whether a model is what the plan makes of it, or what people have made of that since. The history is newest
    first."""
    if stored is None or stored.origin != plan.origin:
        return False
    pulled = next((entry for entry in history if entry.change is ModelChangeKind.PULLED), None)
    return pulled is not None and pulled.text == plan.config


def evidence_of_pull(intent: Intent, plan: PullPlan, missing: Sequence[PlannedFile], *, is_added: bool) -> Sighting:
    """`missing` are the files that are not proven to be there."""
    proof: Proven | Unproven
    if missing:
        counts = {"count": str(len(missing)), "total": str(len(plan.files))}
        proof = Unproven(reason=because(ReasonCode.FILES_MISSING, path=missing[0].path, **counts))
    elif not is_added:
        proof = Unproven(reason=because(ReasonCode.MODEL_NOT_ADDED, model=plan.name))
    else:
        proof = Proven(rung=BY_DIGEST if all(file.digest for file in plan.files) else BY_SIZE)
    return Sighting(proof=proof, had=Before(present=False), payload=intent.payload)


# What is refused.


class StoreSpace(msgspec.Struct, frozen=True, kw_only=True):
    """How much room a store has."""

    name: str
    free_bytes: int
    used_bytes: int = 0
    """By files of models; only counted where there is a quota."""


def check_space(plan: PullPlan, needed: int, space: StoreSpace, policy: PullPolicy) -> None:
    """Conflict when the files that are not there yet have no room."""
    if needed and needed + policy.free_bytes > space.free_bytes:
        reserve = f", {format_size(policy.free_bytes)} shall stay free (models_min_free)" if policy.free_bytes else ""
        raise Conflict(
            f"{plan.name} needs {format_size(needed)}{reserve}, and {space.name} has {format_size(space.free_bytes)}; "
            "`corral models prune` shows what may go"
        )
    if needed and policy.quota_bytes and space.used_bytes + needed > policy.quota_bytes:
        raise Conflict(
            f"{plan.name} needs {format_size(needed)}; {space.name} holds {format_size(space.used_bytes)} of the "
            f"{format_size(policy.quota_bytes)} that models may take there (models_quota)"
        )


def is_name_derived(ask: PullAsk) -> bool:
    """Whether the name of the model will be made from that of a repository or a file: nobody chose it."""
    is_named = ask.name or ask.definition or "name" in ask.overrides
    return not is_named and not isinstance(parse_reference(ask.reference), GalleryReference)


def other_names(name: str) -> Iterator[str]:
    """What a model may be called when its name is taken."""
    return (f"{name}-{number}" for number in range(2, _MOST_NAMES))


def is_name_free(plan: PullPlan, stored: StoredModel | None) -> bool:
    """Whether a model of this plan may have the name of the stored one: that came from the same reference, and is
    brought up to date."""
    return stored is None or (stored.origin is not None and stored.origin.reference == plan.origin.reference)


def check_name_is_free(plan: PullPlan, stored: StoredModel | None) -> None:
    """Conflict when another model has the name."""
    if stored is None or is_name_free(plan, stored):
        return
    origin = f"from {stored.origin.reference}" if stored.origin is not None else f"by {stored.changed_by}"
    raise Conflict(
        f"there is a model {plan.name} already ({origin}); remove it first, or give this one another name with `name`"
    )


def check_files(plan: PullPlan) -> None:
    """InvalidInput when a pull would bring a file that is read as a configuration, or one of Corral's own."""
    for file in plan.files:
        if is_no_weight(file.path):
            problem = "is where configurations of models, or Corral's own files, are; a pull must not change them"
            raise InvalidInput("files", f"{file.path[:80]!r} {problem}")


def check_places(plan: PullPlan, pulls: Iterable[PullPlan]) -> None:
    """Conflict when a pull of another model brings something else to the place of a file."""
    places = {file.path: file for file in plan.files}
    for other in pulls:
        for file in other.files:
            planned = places.get(file.path)
            if other.name != plan.name and planned is not None and not _is_same_file(planned, file):
                raise Conflict(f"{file.path} is being pulled for {other.name}; pull {plan.name} when that is over")


def _is_same_file(file: PlannedFile, other: PlannedFile) -> bool:
    return file.digest == other.digest if file.digest else file.url == other.url


def files_of_others(
    plan: PullPlan, models: Iterable[StoredModel], needed: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """The files of a plan at whose places other models need what is there, unless they were pulled with the same: by
    their paths, the names of those models. `needed` has the paths of each model."""
    files = {}
    for model in models:
        digests = {file.path: file.digest for file in model.files}
        for file in plan.files if model.name != plan.name else ():
            is_same = file.digest and digests.get(file.path) == file.digest
            if not is_same and is_among(file.path, needed[model.name]):
                files[file.path] = model.name
    return files


def joined(plan: PullPlan, current: Intent | None) -> bool:
    """Whether the same is being pulled already. Conflict when something else is, under this name."""
    if current is None or current.state not in (IntentState.OPEN, IntentState.BLOCKED):
        return False
    if is_same(plan, plan_of(current.payload)):
        return True
    if current.state is IntentState.BLOCKED:
        return False
    raise Conflict(
        f"another pull of {plan.name} is under way (operation {current.operation_id}); "
        "cancel it, or give this one another name with `name`"
    )
