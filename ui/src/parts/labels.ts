/** Labels as people type them, and which nodes have them. Pure. */

export type Labels = Readonly<Record<string, string>>;

export interface ReadLabels {
  readonly labels: Labels;
  /** What cannot be read, as a sentence; empty when all can. */
  readonly problem: string;
}

/** Reads `zone=a gpu=nvidia`; blanks or commas stand between labels. */
export function readLabels(text: string): ReadLabels {
  const labels: Record<string, string> = {};
  for (const word of text.split(/[\s,]+/).filter(Boolean)) {
    const equals = word.indexOf("=");
    if (equals < 1) return { labels: {}, problem: `“${word}” is not a label: write key=value` };
    labels[word.slice(0, equals)] = word.slice(equals + 1);
  }
  return { labels, problem: "" };
}

/** Labels in the form that `readLabels` reads, by key. */
export function labelText(labels: Labels): string {
  return Object.entries(labels)
    .toSorted(([one], [other]) => one.localeCompare(other))
    .map(([key, value]) => `${key}=${value}`)
    .join(" ");
}

/** Whether a node has all of these labels. None are had by every node. */
export function hasLabels(own: Labels, wanted: Labels): boolean {
  return Object.entries(wanted).every(([key, value]) => own[key] === value);
}

export interface LabelCount {
  readonly text: string;
  readonly count: number;
}

/** Labels that some, but not all, of these nodes have: those by which they can be told apart, the commonest first. */
export function tellingLabels(nodes: readonly { readonly labels: Labels }[], most = 12): readonly LabelCount[] {
  const counts = new Map<string, number>();
  for (const node of nodes) {
    for (const [key, value] of Object.entries(node.labels)) {
      const text = `${key}=${value}`;
      if (key !== "node.name" && !/\s|,/.test(text)) counts.set(text, (counts.get(text) ?? 0) + 1);
    }
  }
  return [...counts]
    .filter(([, count]) => count < nodes.length)
    .map(([text, count]) => ({ text, count }))
    .toSorted((one, other) => other.count - one.count || one.text.localeCompare(other.text))
    .slice(0, most);
}
