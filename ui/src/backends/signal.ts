/** When what is asked of the server about backends must be asked again: nothing is polled. Pure. */

interface SignalNode {
  readonly id: string;
  readonly status: string;
  readonly capability: string;
}

interface SignalOperation {
  readonly id: string;
  readonly state: string;
  readonly counts: Readonly<Record<string, number>>;
}

interface SignalAttention {
  readonly id: string;
  readonly kind: string;
  readonly why: string;
  readonly count: number;
}

/**
 * A number that differs when a node came, went, or can run other builds, an operation got further on some node, or a
 * report shows something else than was asked for.
 */
export function signalOf(
  nodes: Iterable<SignalNode>,
  operations: Iterable<SignalOperation>,
  attention: Iterable<SignalAttention> = [],
): number {
  let signal = 0;
  for (const node of nodes) signal = mixed(signal, node.id, node.status, node.capability);
  for (const operation of operations) {
    const counts = Object.entries(operation.counts).flat().join(" ");
    signal = mixed(signal, operation.id, operation.state, counts);
  }
  for (const item of attention) {
    if (item.kind === "drift") signal = mixed(signal, item.id, item.why, String(item.count));
  }
  return signal;
}

/** Adds the hash of some words; their order among others does not matter. */
function mixed(signal: number, ...words: readonly string[]): number {
  let hash = 5381;
  for (const letter of words.join("\n")) hash = (hash * 33 + (letter.codePointAt(0) ?? 0)) | 0;
  return (signal + hash) | 0;
}
