// Made by tools/make_ui_words.py from src/corral/wire/state_words.py; changes belong there.

export type Tone = "grey" | "blue" | "yellow" | "green" | "red" | "purple" | "muted";

export interface StateWord {
  readonly label: string;
  readonly tone: Tone;
  readonly glyph: string;
  readonly tooltip: string;
}

export const WORDS = {
  target: {
    queued: { label: "Queued", tone: "grey", glyph: "○", tooltip: "Nothing was sent to the node yet, or the node is away." },
    downloading: { label: "Downloading", tone: "blue", glyph: "◐", tooltip: "The node was asked and works on it." },
    deleting: { label: "Deleting", tone: "blue", glyph: "◐", tooltip: "The node was asked to delete it." },
    removing: { label: "Removing", tone: "blue", glyph: "◐", tooltip: "The node was asked to remove what it has of it." },
    running_on_worker: { label: "Worker busy", tone: "yellow", glyph: "◔", tooltip: "The node did not answer in time and may still be working. Its own report will settle it; nothing is lost." },
    success: { label: "Done", tone: "green", glyph: "●", tooltip: "The node's own report proves it." },
    error: { label: "Failed", tone: "red", glyph: "✕", tooltip: "The last attempt failed. Another one follows by itself." },
    blocked: { label: "Blocked", tone: "purple", glyph: "⊘", tooltip: "It cannot succeed as things are, and is not tried again until somebody changes them." },
    superseded: { label: "Superseded", tone: "muted", glyph: "–", tooltip: "A newer operation wants something else there." },
    cancelled: { label: "Cancelled", tone: "muted", glyph: "–", tooltip: "A person took it back, or the node was removed." },
  },
  operation: {
    running: { label: "Running", tone: "blue", glyph: "◐", tooltip: "Some node is at work, or is about to be asked." },
    waiting: { label: "Waiting", tone: "grey", glyph: "○", tooltip: "All that is left waits for absent nodes. That is no failure." },
    done: { label: "Done", tone: "green", glyph: "●", tooltip: "Every node that was meant has proven it." },
    failed: { label: "Failed", tone: "red", glyph: "✕", tooltip: "It failed or is blocked on some node." },
    cancelled: { label: "Cancelled", tone: "muted", glyph: "–", tooltip: "It was taken back, or a newer operation took its place." },
  },
  node: {
    pending: { label: "Pending", tone: "yellow", glyph: "◔", tooltip: "The machine has registered and waits for a person's approval." },
    healthy: { label: "Healthy", tone: "green", glyph: "●", tooltip: "Its heartbeats arrive, and it takes work." },
    unhealthy: { label: "Unhealthy", tone: "red", glyph: "✕", tooltip: "Its heartbeats stopped, or it did not respond; no requests go there." },
    offline: { label: "Offline", tone: "muted", glyph: "–", tooltip: "It has been silent for long, or signed off. Its replicas are lost." },
    draining: { label: "Draining", tone: "yellow", glyph: "◔", tooltip: "It is being emptied: no new work, and its models move elsewhere." },
  },
  replica: {
    reserved: { label: "Reserved", tone: "grey", glyph: "○", tooltip: "Its place on the node is taken; nothing is loaded yet." },
    staging: { label: "Staging", tone: "blue", glyph: "◐", tooltip: "The files of the model are on their way to the node." },
    loading: { label: "Loading", tone: "blue", glyph: "◐", tooltip: "The engine is loading the model." },
    loaded: { label: "Loaded", tone: "green", glyph: "●", tooltip: "It answers requests." },
    unloading: { label: "Unloading", tone: "yellow", glyph: "◔", tooltip: "It finishes its requests, gets no new ones, and then ends." },
    idle: { label: "Unloaded", tone: "grey", glyph: "○", tooltip: "It has ended as it should and takes no memory any more." },
    failed: { label: "Failed", tone: "red", glyph: "✕", tooltip: "It could not be loaded." },
    lost: { label: "Lost", tone: "red", glyph: "✕", tooltip: "Its node went away, or its engine ended by itself." },
  },
  load: {
    pending: { label: "Waiting", tone: "grey", glyph: "○", tooltip: "It waits for a node that can take it, or for its turn." },
    loading: { label: "Loading", tone: "blue", glyph: "◐", tooltip: "A frontend works on it." },
    failed: { label: "Failed", tone: "red", glyph: "✕", tooltip: "It was given up for now, and says why." },
  },
  load_step: {
    place: { label: "Choosing a node", tone: "blue", glyph: "◐", tooltip: "The node that can take the model is being chosen." },
    install: { label: "Installing the backend", tone: "blue", glyph: "◐", tooltip: "The node gets the backend that the model needs." },
    stage: { label: "Bringing files", tone: "blue", glyph: "◐", tooltip: "The files of the model are on their way to the node." },
    start: { label: "Starting the backend", tone: "blue", glyph: "◐", tooltip: "The node starts the backend's process." },
    load: { label: "Loading", tone: "blue", glyph: "◐", tooltip: "The engine reads the model into memory." },
  },
  model: {
    loaded: { label: "Loaded", tone: "green", glyph: "●", tooltip: "At least one replica answers requests." },
    not_reachable: { label: "Not reachable", tone: "red", glyph: "✕", tooltip: "It is loaded, and no request gets there. It says why." },
    loading: { label: "Loading", tone: "blue", glyph: "◐", tooltip: "It is being loaded; requests wait for it." },
    failed: { label: "Failed", tone: "red", glyph: "✕", tooltip: "The last load failed, and says why." },
    cold: { label: "Cold", tone: "grey", glyph: "○", tooltip: "Nothing asks for it. The first request loads it." },
    elsewhere: { label: "Elsewhere", tone: "green", glyph: "●", tooltip: "Engines that somebody else runs answer for it." },
    unusable: { label: "Unusable", tone: "red", glyph: "✕", tooltip: "Its file could not be read and was passed over." },
    disabled: { label: "Disabled", tone: "muted", glyph: "–", tooltip: "A person disabled it: requests for it are refused." },
  },
  file: {
    waiting: { label: "Waiting", tone: "grey", glyph: "○", tooltip: "It waits for its turn, or for another process that downloads it." },
    fetching: { label: "Downloading", tone: "blue", glyph: "◐", tooltip: "Its bytes are on their way." },
    checking: { label: "Checking", tone: "blue", glyph: "◐", tooltip: "All bytes are there; the last of them are being hashed." },
    done: { label: "Done", tone: "green", glyph: "●", tooltip: "It is there, whole." },
  },
  engine: {
    unknown: { label: "Unknown", tone: "grey", glyph: "○", tooltip: "Nobody has looked at it yet." },
    up: { label: "Up", tone: "green", glyph: "●", tooltip: "It answered the last look." },
    failing: { label: "Failing", tone: "yellow", glyph: "◔", tooltip: "A look or a request failed; it is asked last." },
    down: { label: "Down", tone: "red", glyph: "✕", tooltip: "Several looks in a row failed; it is not asked." },
    misconfigured: { label: "Misconfigured", tone: "red", glyph: "✕", tooltip: "It refused the key, or nobody is sent to its address." },
    disabled: { label: "Disabled", tone: "muted", glyph: "–", tooltip: "A person disabled it; it is not asked." },
  },
  invitation: {
    open: { label: "Open", tone: "green", glyph: "●", tooltip: "Machines can still join with it." },
    used: { label: "Used", tone: "muted", glyph: "–", tooltip: "As many machines as it allows have joined with it." },
    expired: { label: "Expired", tone: "muted", glyph: "–", tooltip: "Its time is over." },
    revoked: { label: "Revoked", tone: "muted", glyph: "–", tooltip: "A person took it back." },
  },
  key: {
    active: { label: "Active", tone: "green", glyph: "●", tooltip: "It is accepted." },
    expired: { label: "Expired", tone: "muted", glyph: "–", tooltip: "Its time is over." },
    revoked: { label: "Revoked", tone: "muted", glyph: "–", tooltip: "It was revoked, for good." },
    disabled: { label: "Disabled", tone: "muted", glyph: "–", tooltip: "Its user is disabled." },
  },
  user: {
    active: { label: "Active", tone: "green", glyph: "●", tooltip: "May sign in." },
    disabled: { label: "Disabled", tone: "muted", glyph: "–", tooltip: "May not sign in, and no key of theirs is accepted." },
  },
  verdict: {
    fits: { label: "Fits", tone: "green", glyph: "●", tooltip: "The node can take one more replica." },
    runs_no_backends: { label: "Runs no backends", tone: "muted", glyph: "–", tooltip: "Nodes of this type run no models." },
    not_healthy: { label: "Not healthy", tone: "red", glyph: "✕", tooltip: "The node is not healthy, or is being drained." },
    failed_before: { label: "Failed before", tone: "red", glyph: "✕", tooltip: "A load of this model failed there just now." },
    not_pinned: { label: "Not pinned", tone: "muted", glyph: "–", tooltip: "The model is pinned to other nodes." },
    not_selected: { label: "Not selected", tone: "muted", glyph: "–", tooltip: "The node lacks a label that the model's rule wants." },
    unfit: { label: "Unfit", tone: "purple", glyph: "⊘", tooltip: "No build of the model's backend fits the machine." },
    no_slot: { label: "No slot", tone: "grey", glyph: "○", tooltip: "The node has as many replicas of the model as it may have." },
    rival: { label: "Rival", tone: "yellow", glyph: "◔", tooltip: "A model runs there that may not run beside this one." },
    no_disk: { label: "No disk", tone: "red", glyph: "✕", tooltip: "The node's disk has too little room for the files." },
    no_vram: { label: "No VRAM", tone: "red", glyph: "✕", tooltip: "The node's GPUs have too little memory free." },
    no_ram: { label: "No RAM", tone: "red", glyph: "✕", tooltip: "The node has too little memory free." },
  },
  drift: {
    changed: { label: "Changed", tone: "yellow", glyph: "◔", tooltip: "The node had it as asked, and has something else now." },
    blocked: { label: "Blocked", tone: "purple", glyph: "⊘", tooltip: "It cannot succeed until somebody changes something." },
    failing: { label: "Failing", tone: "red", glyph: "✕", tooltip: "The last attempt failed. Another one follows by itself." },
    waiting: { label: "Waiting", tone: "grey", glyph: "○", tooltip: "It is done when the node comes back." },
    missing: { label: "Missing", tone: "blue", glyph: "◐", tooltip: "A fleet rule demands it and is about to have it installed." },
  },
  freshness: {
    current: { label: "Current", tone: "green", glyph: "●", tooltip: "It is what galleries and registries offer now." },
    outdated: { label: "Outdated", tone: "yellow", glyph: "◔", tooltip: "Something newer is to be had." },
    differs: { label: "Differs", tone: "yellow", glyph: "◔", tooltip: "Most other nodes have another build." },
    unknown: { label: "Unknown", tone: "grey", glyph: "○", tooltip: "Nobody can tell: too little is known of it." },
    unreachable: { label: "Unreachable", tone: "red", glyph: "✕", tooltip: "Where it came from could not be asked." },
  },
  fate: {
    moves: { label: "Moves", tone: "green", glyph: "●", tooltip: "It ends where it is, and is loaded elsewhere." },
    added: { label: "Added", tone: "green", glyph: "●", tooltip: "One more is loaded." },
    ended: { label: "Ends", tone: "muted", glyph: "–", tooltip: "One fewer is wanted." },
    stays: { label: "Stays", tone: "yellow", glyph: "◔", tooltip: "It has no place elsewhere, and ends only by force." },
    replica_lost: { label: "Replica lost", tone: "red", glyph: "✕", tooltip: "It has no place elsewhere; others of the model go on." },
    service_lost: { label: "Service lost", tone: "red", glyph: "✕", tooltip: "It has no place elsewhere, and there is no other." },
    not_added: { label: "Not added", tone: "red", glyph: "✕", tooltip: "There is no place for one more." },
  },
  consequence: {
    moves: { label: "Moves", tone: "green", glyph: "●", tooltip: "It ends where it is, and is loaded elsewhere." },
    added: { label: "Added", tone: "green", glyph: "●", tooltip: "It is loaded in addition to what there is." },
    stays: { label: "Stays", tone: "yellow", glyph: "◔", tooltip: "It stays where it is, since no other node can take it." },
    ends: { label: "Ends", tone: "red", glyph: "✕", tooltip: "It ends, after its requests." },
    loses_service: { label: "Service lost", tone: "red", glyph: "✕", tooltip: "Nothing answers for the model any more." },
    not_added: { label: "Not added", tone: "red", glyph: "✕", tooltip: "It is wanted, and no node can take it." },
    cancelled: { label: "Cancelled", tone: "muted", glyph: "–", tooltip: "It was to be done there, and is taken back." },
    deleted: { label: "Deleted", tone: "red", glyph: "✕", tooltip: "It is deleted and does not come back by itself." },
    kept: { label: "Kept", tone: "grey", glyph: "○", tooltip: "It is left as it is." },
  },
  severity: {
    alarm: { label: "Alarm", tone: "red", glyph: "✕", tooltip: "Somebody should act now: something does not serve, or soon will not." },
    warning: { label: "Warning", tone: "yellow", glyph: "◔", tooltip: "Somebody should look at it today." },
    notice: { label: "Notice", tone: "grey", glyph: "○", tooltip: "Good to know; nothing is in danger." },
  },
  role: {
    admin: { label: "Admin", tone: "grey", glyph: "○", tooltip: "May do everything." },
    operator: { label: "Operator", tone: "grey", glyph: "○", tooltip: "Runs the fleet, but decides neither who belongs to it nor what it trusts." },
    viewer: { label: "Viewer", tone: "grey", glyph: "○", tooltip: "Sees the fleet and changes nothing." },
    inference: { label: "Inference", tone: "grey", glyph: "○", tooltip: "Asks models, and sees which there are." },
    node: { label: "Node", tone: "grey", glyph: "○", tooltip: "A machine of the fleet." },
    gateway: { label: "Gateway", tone: "grey", glyph: "○", tooltip: "A process that carries requests." },
  },
} as const satisfies Record<string, Record<string, StateWord>>;

export type Subject = keyof typeof WORDS;

/** What the target state `downloading` is shown as for these verbs. */
export const MOVING: Readonly<Record<string, string>> = { delete: "deleting", remove: "removing" };

/** What proves that a target is done, by the rung that its reason names. */
export const PROOFS: Readonly<Record<string, string>> = {
  "present": "its report shows it",
  "absent": "its report no longer shows it",
  "digest": "its report shows it, with the right digest",
  "version": "its report shows it, with the right version",
  "renewed": "its report shows it, dated anew",
  "told": "the node says so",
  "by digest": "all its files have the digests that were promised",
  "whole; nobody promised a digest of some files": "all its files are there, of which some had no digest to check",
  "by the digests that the node tells": "its file server shows all files, with the right digests",
  "by the digests that the node tells; nothing had to be sent": "its file server shows all files, with the right digests",
};

/** How to show a state. One that a newer server sends is shown as it is. */
export function stateWord(subject: Subject, state: string): StateWord {
  const words: Readonly<Record<string, StateWord>> = WORDS[subject];
  const word = Object.hasOwn(words, state) ? words[state] : undefined;
  return word ?? { label: state, tone: "grey", glyph: "○", tooltip: "This version does not know this state." };
}

/** How to show the status of a target of an operation with this verb. */
export function targetWord(status: string, verb: string): StateWord {
  return stateWord("target", status === "downloading" ? (MOVING[verb] ?? status) : status);
}
