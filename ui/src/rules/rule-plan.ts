/** The plan of a change of the fleet rules, in words. Pure. */

import type { Schema } from "../api/client";
import { plural } from "../parts/format";
import { shellCommand } from "../parts/shell-words";
import { askOfDraft, type RuleAsk, type RuleEdit } from "./rule-set";

export type RulesPlan = Schema<"RulesPlan">;

/** "+ echo-for-speech", "~ speech", "- old". */
export function changeLines(plan: Pick<RulesPlan, "changes">): readonly string[] {
  const { added, changed, removed } = plan.changes;
  return [
    ...added.map((name) => `+ ${name}`),
    ...changed.map((name) => `~ ${name}`),
    ...removed.map((name) => `- ${name}`),
  ];
}

/** What follows, when it is not one operation that can be watched. */
export function afterText(applied: Schema<"AppliedRules">): string {
  const doubts = Object.values(applied.doubts);
  const follows =
    applied.operations.length === 0
      ? "Saved. Nothing is left to do."
      : `Saved. ${plural(applied.operations.length, "operation")} follow; Activity shows them.`;
  return [follows, ...doubts].join(" ");
}

/** The command that does the same. A file may have other rules too; those that it does not name stay. */
export function applyCommand(edit: RuleEdit): string {
  if (edit.kind === "remove") return shellCommand(["corral", "backends", "rules", "delete", edit.was]);
  const lines = ["corral backends apply -f - <<'END'", "rules:", ...ruleLines(askOfDraft(edit.draft)), "END"];
  return lines.join("\n");
}

function ruleLines(rule: RuleAsk): readonly string[] {
  const labels = Object.entries(rule.labels).map(([key, value]) => `      ${quoted(key)}: ${quoted(value)}`);
  return [
    `  - name: ${quoted(rule.name)}`,
    `    backend: ${quoted(rule.backend)}`,
    ...(rule.uri === "" ? [] : [`    uri: ${quoted(rule.uri)}`]),
    ...(rule.alias === "" ? [] : [`    alias: ${quoted(rule.alias)}`]),
    ...(labels.length === 0 ? [] : ["    labels:", ...labels]),
  ];
}

/** A text as YAML reads it back; JSON's quotes are YAML's too. */
function quoted(text: string): string {
  return JSON.stringify(text);
}
