"""The words that people read for states: one table for the command line and for the web page.

Programs read the raw words (`running_on_worker`, `success`, `error`), which the API and `--json` keep. People read
labels, each with a tone, a glyph that stands beside it so that nothing is said by colour alone, and a sentence that
explains it. `tools/make_ui_words.py` writes this table for the page.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec


class Tone(StrEnum):
    """The kind of colour of a state."""

    GREY = "grey"
    BLUE = "blue"
    YELLOW = "yellow"
    GREEN = "green"
    RED = "red"
    PURPLE = "purple"
    MUTED = "muted"


GLYPHS: Final[Mapping[Tone, str]] = {
    Tone.GREY: "○",
    Tone.BLUE: "◐",
    Tone.YELLOW: "◔",
    Tone.GREEN: "●",
    Tone.RED: "✕",
    Tone.PURPLE: "⊘",
    Tone.MUTED: "–",
}


class StateWord(msgspec.Struct, frozen=True):
    """How one state is shown to people."""

    label: str
    tone: Tone
    tooltip: str
    """What it means, as one or two sentences."""

    @property
    def glyph(self) -> str:
        return GLYPHS[self.tone]

    @property
    def inline(self) -> str:
        """The label inside a sentence."""
        return self.label[:1].lower() + self.label[1:]


class Subject(StrEnum):
    """What has states that people see."""

    TARGET = "target"
    OPERATION = "operation"
    NODE = "node"
    REPLICA = "replica"
    LOAD = "load"
    LOAD_STEP = "load_step"
    MODEL = "model"
    FILE = "file"
    ENGINE = "engine"
    INVITATION = "invitation"
    KEY = "key"
    USER = "user"
    VERDICT = "verdict"
    DRIFT = "drift"
    FRESHNESS = "freshness"
    FATE = "fate"
    CONSEQUENCE = "consequence"
    SEVERITY = "severity"
    ROLE = "role"


_TARGET: Final = {
    "queued": StateWord("Queued", Tone.GREY, "Nothing was sent to the node yet, or the node is away."),
    "downloading": StateWord("Downloading", Tone.BLUE, "The node was asked and works on it."),
    "deleting": StateWord("Deleting", Tone.BLUE, "The node was asked to delete it."),
    "removing": StateWord("Removing", Tone.BLUE, "The node was asked to remove what it has of it."),
    "running_on_worker": StateWord(
        "Worker busy",
        Tone.YELLOW,
        "The node did not answer in time and may still be working. Its own report will settle it; nothing is lost.",
    ),
    "success": StateWord("Done", Tone.GREEN, "The node's own report proves it."),
    "error": StateWord("Failed", Tone.RED, "The last attempt failed. Another one follows by itself."),
    "blocked": StateWord(
        "Blocked", Tone.PURPLE, "It cannot succeed as things are, and is not tried again until somebody changes them."
    ),
    "superseded": StateWord("Superseded", Tone.MUTED, "A newer operation wants something else there."),
    "cancelled": StateWord("Cancelled", Tone.MUTED, "A person took it back, or the node was removed."),
}
_OPERATION: Final = {
    "running": StateWord("Running", Tone.BLUE, "Some node is at work, or is about to be asked."),
    "waiting": StateWord("Waiting", Tone.GREY, "All that is left waits for absent nodes. That is no failure."),
    "done": StateWord("Done", Tone.GREEN, "Every node that was meant has proven it."),
    "failed": StateWord("Failed", Tone.RED, "It failed or is blocked on some node."),
    "cancelled": StateWord("Cancelled", Tone.MUTED, "It was taken back, or a newer operation took its place."),
}
_NODE: Final = {
    "pending": StateWord("Pending", Tone.YELLOW, "The machine has registered and waits for a person's approval."),
    "healthy": StateWord("Healthy", Tone.GREEN, "Its heartbeats arrive, and it takes work."),
    "unhealthy": StateWord(
        "Unhealthy", Tone.RED, "Its heartbeats stopped, or it did not respond; no requests go there."
    ),
    "offline": StateWord("Offline", Tone.MUTED, "It has been silent for long, or signed off. Its replicas are lost."),
    "draining": StateWord("Draining", Tone.YELLOW, "It is being emptied: no new work, and its models move elsewhere."),
}
_REPLICA: Final = {
    "reserved": StateWord("Reserved", Tone.GREY, "Its place on the node is taken; nothing is loaded yet."),
    "staging": StateWord("Staging", Tone.BLUE, "The files of the model are on their way to the node."),
    "loading": StateWord("Loading", Tone.BLUE, "The engine is loading the model."),
    "loaded": StateWord("Loaded", Tone.GREEN, "It answers requests."),
    "unloading": StateWord("Unloading", Tone.YELLOW, "It finishes its requests, gets no new ones, and then ends."),
    "idle": StateWord("Unloaded", Tone.GREY, "It has ended as it should and takes no memory any more."),
    "failed": StateWord("Failed", Tone.RED, "It could not be loaded."),
    "lost": StateWord("Lost", Tone.RED, "Its node went away, or its engine ended by itself."),
}
_LOAD: Final = {
    "pending": StateWord("Waiting", Tone.GREY, "It waits for a node that can take it, or for its turn."),
    "loading": StateWord("Loading", Tone.BLUE, "A frontend works on it."),
    "failed": StateWord("Failed", Tone.RED, "It was given up for now, and says why."),
}
_LOAD_STEP: Final = {
    "place": StateWord("Choosing a node", Tone.BLUE, "The node that can take the model is being chosen."),
    "install": StateWord("Installing the backend", Tone.BLUE, "The node gets the backend that the model needs."),
    "stage": StateWord("Bringing files", Tone.BLUE, "The files of the model are on their way to the node."),
    "start": StateWord("Starting the backend", Tone.BLUE, "The node starts the backend's process."),
    "load": StateWord("Loading", Tone.BLUE, "The engine reads the model into memory."),
}
_MODEL: Final = {
    "loaded": StateWord("Loaded", Tone.GREEN, "At least one replica answers requests."),
    "not_reachable": StateWord("Not reachable", Tone.RED, "It is loaded, and no request gets there. It says why."),
    "loading": StateWord("Loading", Tone.BLUE, "It is being loaded; requests wait for it."),
    "failed": StateWord("Failed", Tone.RED, "The last load failed, and says why."),
    "cold": StateWord("Cold", Tone.GREY, "Nothing asks for it. The first request loads it."),
    "elsewhere": StateWord("Elsewhere", Tone.GREEN, "Engines that somebody else runs answer for it."),
    "unusable": StateWord("Unusable", Tone.RED, "Its file could not be read and was passed over."),
    "disabled": StateWord("Disabled", Tone.MUTED, "A person disabled it: requests for it are refused."),
}
_FILE: Final = {
    "waiting": StateWord("Waiting", Tone.GREY, "It waits for its turn, or for another process that downloads it."),
    "fetching": StateWord("Downloading", Tone.BLUE, "Its bytes are on their way."),
    "checking": StateWord("Checking", Tone.BLUE, "All bytes are there; the last of them are being hashed."),
    "done": StateWord("Done", Tone.GREEN, "It is there, whole."),
}
_ENGINE: Final = {
    "unknown": StateWord("Unknown", Tone.GREY, "Nobody has looked at it yet."),
    "up": StateWord("Up", Tone.GREEN, "It answered the last look."),
    "failing": StateWord("Failing", Tone.YELLOW, "A look or a request failed; it is asked last."),
    "down": StateWord("Down", Tone.RED, "Several looks in a row failed; it is not asked."),
    "misconfigured": StateWord("Misconfigured", Tone.RED, "It refused the key, or nobody is sent to its address."),
    "disabled": StateWord("Disabled", Tone.MUTED, "A person disabled it; it is not asked."),
}
_INVITATION: Final = {
    "open": StateWord("Open", Tone.GREEN, "Machines can still join with it."),
    "used": StateWord("Used", Tone.MUTED, "As many machines as it allows have joined with it."),
    "expired": StateWord("Expired", Tone.MUTED, "Its time is over."),
    "revoked": StateWord("Revoked", Tone.MUTED, "A person took it back."),
}
_KEY: Final = {
    "active": StateWord("Active", Tone.GREEN, "It is accepted."),
    "expired": StateWord("Expired", Tone.MUTED, "Its time is over."),
    "revoked": StateWord("Revoked", Tone.MUTED, "It was revoked, for good."),
    "disabled": StateWord("Disabled", Tone.MUTED, "Its user is disabled."),
}
_USER: Final = {
    "active": StateWord("Active", Tone.GREEN, "May sign in."),
    "disabled": StateWord("Disabled", Tone.MUTED, "May not sign in, and no key of theirs is accepted."),
}
_VERDICT: Final = {
    "fits": StateWord("Fits", Tone.GREEN, "The node can take one more replica."),
    "runs_no_backends": StateWord("Runs no backends", Tone.MUTED, "Nodes of this type run no models."),
    "not_healthy": StateWord("Not healthy", Tone.RED, "The node is not healthy, or is being drained."),
    "failed_before": StateWord("Failed before", Tone.RED, "A load of this model failed there just now."),
    "not_pinned": StateWord("Not pinned", Tone.MUTED, "The model is pinned to other nodes."),
    "not_selected": StateWord("Not selected", Tone.MUTED, "The node lacks a label that the model's rule wants."),
    "unfit": StateWord("Unfit", Tone.PURPLE, "No build of the model's backend fits the machine."),
    "no_slot": StateWord("No slot", Tone.GREY, "The node has as many replicas of the model as it may have."),
    "rival": StateWord("Rival", Tone.YELLOW, "A model runs there that may not run beside this one."),
    "no_disk": StateWord("No disk", Tone.RED, "The node's disk has too little room for the files."),
    "no_vram": StateWord("No VRAM", Tone.RED, "The node's GPUs have too little memory free."),
    "no_ram": StateWord("No RAM", Tone.RED, "The node has too little memory free."),
}
_DRIFT: Final = {
    "changed": StateWord("Changed", Tone.YELLOW, "The node had it as asked, and has something else now."),
    "blocked": StateWord("Blocked", Tone.PURPLE, "It cannot succeed until somebody changes something."),
    "failing": StateWord("Failing", Tone.RED, "The last attempt failed. Another one follows by itself."),
    "waiting": StateWord("Waiting", Tone.GREY, "It is done when the node comes back."),
    "missing": StateWord("Missing", Tone.BLUE, "A fleet rule demands it and is about to have it installed."),
}
_FRESHNESS: Final = {
    "current": StateWord("Current", Tone.GREEN, "It is what galleries and registries offer now."),
    "outdated": StateWord("Outdated", Tone.YELLOW, "Something newer is to be had."),
    "differs": StateWord("Differs", Tone.YELLOW, "Most other nodes have another build."),
    "unknown": StateWord("Unknown", Tone.GREY, "Nobody can tell: too little is known of it."),
    "unreachable": StateWord("Unreachable", Tone.RED, "Where it came from could not be asked."),
}
_FATE: Final = {
    "moves": StateWord("Moves", Tone.GREEN, "It ends where it is, and is loaded elsewhere."),
    "added": StateWord("Added", Tone.GREEN, "One more is loaded."),
    "ended": StateWord("Ends", Tone.MUTED, "One fewer is wanted."),
    "stays": StateWord("Stays", Tone.YELLOW, "It has no place elsewhere, and ends only by force."),
    "replica_lost": StateWord("Replica lost", Tone.RED, "It has no place elsewhere; others of the model go on."),
    "service_lost": StateWord("Service lost", Tone.RED, "It has no place elsewhere, and there is no other."),
    "not_added": StateWord("Not added", Tone.RED, "There is no place for one more."),
}
_CONSEQUENCE: Final = {
    "moves": StateWord("Moves", Tone.GREEN, "It ends where it is, and is loaded elsewhere."),
    "added": StateWord("Added", Tone.GREEN, "It is loaded in addition to what there is."),
    "stays": StateWord("Stays", Tone.YELLOW, "It stays where it is, since no other node can take it."),
    "ends": StateWord("Ends", Tone.RED, "It ends, after its requests."),
    "loses_service": StateWord("Service lost", Tone.RED, "Nothing answers for the model any more."),
    "not_added": StateWord("Not added", Tone.RED, "It is wanted, and no node can take it."),
    "cancelled": StateWord("Cancelled", Tone.MUTED, "It was to be done there, and is taken back."),
    "deleted": StateWord("Deleted", Tone.RED, "It is deleted and does not come back by itself."),
    "kept": StateWord("Kept", Tone.GREY, "It is left as it is."),
}
_SEVERITY: Final = {
    "alarm": StateWord("Alarm", Tone.RED, "Somebody should act now: something does not serve, or soon will not."),
    "warning": StateWord("Warning", Tone.YELLOW, "Somebody should look at it today."),
    "notice": StateWord("Notice", Tone.GREY, "Good to know; nothing is in danger."),
}
_ROLE: Final = {
    "admin": StateWord("Admin", Tone.GREY, "May do everything."),
    "operator": StateWord(
        "Operator", Tone.GREY, "Runs the fleet, but decides neither who belongs to it nor what it trusts."
    ),
    "viewer": StateWord("Viewer", Tone.GREY, "Sees the fleet and changes nothing."),
    "inference": StateWord("Inference", Tone.GREY, "Asks models, and sees which there are."),
    "node": StateWord("Node", Tone.GREY, "A machine of the fleet."),
    "gateway": StateWord("Gateway", Tone.GREY, "A process that carries requests."),
}

WORDS: Final[Mapping[Subject, Mapping[str, StateWord]]] = {
    Subject.TARGET: _TARGET,
    Subject.OPERATION: _OPERATION,
    Subject.NODE: _NODE,
    Subject.REPLICA: _REPLICA,
    Subject.LOAD: _LOAD,
    Subject.LOAD_STEP: _LOAD_STEP,
    Subject.MODEL: _MODEL,
    Subject.FILE: _FILE,
    Subject.ENGINE: _ENGINE,
    Subject.INVITATION: _INVITATION,
    Subject.KEY: _KEY,
    Subject.USER: _USER,
    Subject.VERDICT: _VERDICT,
    Subject.DRIFT: _DRIFT,
    Subject.FRESHNESS: _FRESHNESS,
    Subject.FATE: _FATE,
    Subject.CONSEQUENCE: _CONSEQUENCE,
    Subject.SEVERITY: _SEVERITY,
    Subject.ROLE: _ROLE,
}
MOVING: Final[Mapping[str, str]] = {"delete": "deleting", "remove": "removing"}
"""What the target state `downloading` is shown as for these verbs; other verbs keep it."""

PROOFS: Final[Mapping[str, str]] = {
    "present": "its report shows it",
    "absent": "its report no longer shows it",
    "digest": "its report shows it, with the right digest",
    "version": "its report shows it, with the right version",
    "renewed": "its report shows it, dated anew",
    "told": "the node says so",
    "by digest": "all its files have the digests that were promised",
    "whole; nobody promised a digest of some files": "all its files are there, of which some had no digest to check",
    "by the digests that the node tells": "its file server shows all files, with the right digests",
    "by the digests that the node tells; nothing had to be sent": "its file server shows all files, with the right "
    "digests",
}
"""What proves that a target is done, by the rung that its reason names."""


def state_word(subject: Subject, state: str) -> StateWord:
    """How to show a state. One that a newer frontend sends is shown as it is."""
    word = WORDS[subject].get(state)
    return word or StateWord(state, Tone.GREY, "This version does not know this state.")


def target_word(status: str, verb: str) -> StateWord:
    """How to show the status of a target: what is `downloading` is deleted or removed for these verbs."""
    return state_word(Subject.TARGET, MOVING.get(verb, status) if status == "downloading" else status)
