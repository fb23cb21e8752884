/** Operations in the words of people. Pure. */

import type { OperationRow } from "../live/topics";

/** "Install llama-cpp", "Pull smollm2". */
export function titleOf(operation: { readonly verb: string; readonly backend: string; readonly uri: string }): string {
  const verb = operation.verb.charAt(0).toUpperCase() + operation.verb.slice(1);
  return `${verb} ${operation.backend || operation.uri}`;
}

export function isOver(operation: Pick<OperationRow, "state">): boolean {
  return operation.state === "done" || operation.state === "cancelled" || operation.state === "failed";
}

/** Who asked, with what kind of asker it was: a key, a rule, a person. */
export function askerOf(operation: Pick<OperationRow, "asked_by">): string {
  return operation.asked_by || "nobody known";
}
