"""Why a model is not loaded: the reason that control tells gateways, and the sentence that clients read."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class LoadReason(StrEnum):
    """Why a model is not loaded, in words that every client may read: they name no machine, path, port or address."""

    NO_PLACE = "no_place"
    BEING_REMOVED = "being_removed"
    MACHINE_AWAY = "machine_away"
    ENGINE_NOT_STARTED = "engine_not_started"
    ENGINE_ENDED = "engine_ended"
    REFUSED_BY_ENGINE = "refused_by_engine"
    TIMED_OUT = "timed_out"
    NOT_REACHABLE = "not_reachable"
    OTHER = "other"


REASON_SENTENCES: Final[Mapping[LoadReason, str]] = {
    LoadReason.NO_PLACE: "no machine of the fleet can take it at the moment",
    LoadReason.BEING_REMOVED: "it, or the engine that it needs, is about to be removed",
    LoadReason.MACHINE_AWAY: "the machine that was to load it does not answer",
    LoadReason.ENGINE_NOT_STARTED: "the engine that it needs could not be installed or started",
    LoadReason.ENGINE_ENDED: "its engine stopped while it was loading",
    LoadReason.REFUSED_BY_ENGINE: "its engine could not load it",
    LoadReason.TIMED_OUT: "loading it took too long",
    LoadReason.NOT_REACHABLE: "it is loaded where requests cannot reach it",
    LoadReason.OTHER: "it could not be loaded",
}
