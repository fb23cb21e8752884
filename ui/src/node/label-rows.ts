/** Labels of a node with where each comes from. Pure. */

interface Labelled {
  readonly labels: Readonly<Record<string, string>>;
  readonly admin_labels: Readonly<Record<string, string>>;
  readonly removed_labels: readonly string[];
}

export interface LabelRow {
  readonly key: string;
  readonly value: string;
  readonly origin: string;
  readonly canRemove: boolean;
}

/** Corral derives these from the registration: they always come back. */
const AUTOMATIC = new Set(["node.name", "node.replica-slots", "gpu.vendor", "gpu.vram"]);

export function labelRows({ labels, admin_labels, removed_labels }: Labelled): LabelRow[] {
  const here = Object.entries(labels).map(([key, value]) => ({
    key,
    value,
    origin: originOf(key, admin_labels),
    canRemove: key in admin_labels || !AUTOMATIC.has(key),
  }));
  const removed = removed_labels
    .filter((key) => !(key in labels))
    .map((key) => ({ key, value: "–", origin: "reported, taken away by hand", canRemove: false }));
  return [...here, ...removed].sort((one, other) => one.key.localeCompare(other.key));
}

function originOf(key: string, byHand: Readonly<Record<string, string>>): string {
  if (key in byHand) return "set by hand";
  return AUTOMATIC.has(key) ? "found by Corral" : "reported by the worker";
}
