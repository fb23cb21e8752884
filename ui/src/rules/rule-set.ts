/** The fleet rules as one set: what an edit makes of it, and what two people made of it at once. Pure. */

import type { Schema } from "../api/client";
import { labelText, readLabels } from "../parts/labels";

export type RuleView = Schema<"RuleView">;
export type RuleAsk = Schema<"RuleAsk">;
export type RuleSet = Schema<"RuleSetView">;

/** A rule as somebody types it. */
export interface RuleDraft {
  readonly name: string;
  readonly backend: string;
  readonly labels: string;
  readonly uri: string;
  readonly alias: string;
}

export const NEW_RULE: RuleDraft = { name: "", backend: "", labels: "", uri: "", alias: "" };

/** What is to become of one rule. `was` is its name so far; empty for a new one. */
export type RuleEdit =
  | { readonly kind: "put"; readonly was: string; readonly draft: RuleDraft }
  | { readonly kind: "remove"; readonly was: string; readonly deletes: boolean };

export function draftOf(rule: RuleAsk): RuleDraft {
  return { name: rule.name, backend: rule.backend, labels: labelText(rule.labels), uri: rule.uri, alias: rule.alias };
}

export function askOfDraft(draft: RuleDraft): RuleAsk {
  return {
    name: draft.name.trim(),
    backend: draft.backend.trim(),
    labels: { ...readLabels(draft.labels).labels },
    uri: draft.uri.trim(),
    alias: draft.alias.trim(),
  };
}

/** What is wrong with a draft, by its field; the server checks the rest. */
export function draftProblems(
  draft: RuleDraft,
  was: string,
  rules: readonly RuleView[],
): Partial<Record<keyof RuleDraft, string>> {
  const problems: Partial<Record<keyof RuleDraft, string>> = {};
  const name = draft.name.trim();
  if (!/^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$/.test(name)) {
    problems.name = "Up to 63 letters, digits, dots, dashes and underscores.";
  } else if (name !== was && rules.some((rule) => rule.name === name)) {
    problems.name = "Another rule has this name.";
  }
  if (draft.backend.trim() === "") problems.backend = "Name a backend.";
  const { problem } = readLabels(draft.labels);
  if (problem !== "") problems.labels = problem;
  return problems;
}

/** The whole set after an edit: rules are put as one. */
export function editedSet(rules: readonly RuleAsk[], edit: RuleEdit): RuleAsk[] {
  const others = rules.filter((rule) => rule.name !== edit.was).map(plainRule);
  if (edit.kind === "remove") return others;
  const mine = askOfDraft(edit.draft);
  const place = rules.findIndex((rule) => rule.name === edit.was);
  return place < 0 ? [...others, mine] : others.toSpliced(place, 0, mine);
}

function plainRule({ name, backend, labels, uri, alias }: RuleAsk): RuleAsk {
  return { name, backend, labels, uri, alias };
}

/** An edit that goes on with rules that somebody else made: a new rule whose name they took replaces theirs. */
export function rebased(edit: RuleEdit, now: readonly RuleAsk[]): RuleEdit {
  if (edit.kind === "remove" || edit.was !== "") return edit;
  const name = edit.draft.name.trim();
  return now.some((rule) => rule.name === name) ? { ...edit, was: name } : edit;
}

/** One rule in three versions: as it was when somebody began, as they want it, and as somebody else made it meanwhile. */
export interface Conflict {
  readonly base: RuleAsk | null;
  readonly mine: RuleAsk | null;
  readonly theirs: RuleAsk | null;
  /** Other rules that changed meanwhile, by name; they are kept whatever is chosen. */
  readonly others: readonly string[];
}

export function conflictOf(edit: RuleEdit, before: readonly RuleAsk[], now: readonly RuleAsk[]): Conflict {
  const name = edit.was !== "" ? edit.was : edit.kind === "put" ? edit.draft.name.trim() : "";
  const find = (rules: readonly RuleAsk[]) => rules.find((rule) => rule.name === name) ?? null;
  const names = new Set([...before, ...now].map((rule) => rule.name));
  names.delete(name);
  return {
    base: find(before),
    mine: edit.kind === "put" ? askOfDraft(edit.draft) : null,
    theirs: find(now),
    others: [...names].filter((other) => !isSameRule(pick(before, other), pick(now, other))).toSorted(),
  };
}

function pick(rules: readonly RuleAsk[], name: string): RuleAsk | null {
  return rules.find((rule) => rule.name === name) ?? null;
}

export function isSameRule(one: RuleAsk | null, other: RuleAsk | null): boolean {
  return ruleFields(one).every(([, text], index) => text === ruleFields(other)[index]?.[1]);
}

/** A rule in words, field by field, so that versions can be laid side by side. */
export function ruleFields(rule: RuleAsk | null): readonly (readonly [string, string])[] {
  if (rule === null)
    return [
      ["Name", "–"],
      ["Backend", "–"],
      ["Nodes", "–"],
      ["From", "–"],
      ["Alias", "–"],
    ];
  return [
    ["Name", rule.name],
    ["Backend", rule.backend],
    ["Nodes", labelText(rule.labels) || "every node"],
    ["From", rule.uri || "a gallery"],
    ["Alias", rule.alias || "–"],
  ];
}

export interface Satisfaction {
  readonly matches: number;
  readonly satisfied: number;
  /** Nodes that failed or are blocked. */
  readonly stuck: number;
  readonly underWay: number;
}

export function satisfactionOf(rule: RuleView): Satisfaction {
  const matches = Object.values(rule.counts).reduce((total, count) => total + count, 0);
  const satisfied = rule.counts["success"] ?? 0;
  const stuck = (rule.counts["error"] ?? 0) + (rule.counts["blocked"] ?? 0);
  return { matches, satisfied, stuck, underWay: matches - satisfied - stuck };
}
