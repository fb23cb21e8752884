import { describe, expect, it } from "vitest";

import {
  conflictOf,
  draftOf,
  draftProblems,
  editedSet,
  isSameRule,
  NEW_RULE,
  type RuleAsk,
  rebased,
  ruleFields,
  satisfactionOf,
} from "../rule-set";

const rule = (name: string, more: Partial<RuleAsk> = {}): RuleAsk => ({
  name,
  backend: "echo",
  labels: {},
  uri: "",
  alias: "",
  ...more,
});
const view = (name: string, counts: Record<string, number> = {}) => ({
  ...rule(name),
  made_by: "admin",
  made_at: "",
  counts,
  unmet: {},
  doubt: "",
});

describe("an edit of the fleet rules", () => {
  const rules = [rule("a"), rule("b"), rule("c")];

  it("adds a rule at the end", () => {
    const draft = { ...NEW_RULE, name: " d ", backend: "vllm", labels: "zone=a" };
    expect(editedSet(rules, { kind: "put", was: "", draft }).at(-1)).toEqual(
      rule("d", { backend: "vllm", labels: { zone: "a" } }),
    );
  });

  it("changes a rule in its place, also its name", () => {
    const edit = { kind: "put", was: "b", draft: { ...draftOf(rule("b")), name: "bee" } } as const;
    expect(editedSet(rules, edit).map((each) => each.name)).toEqual(["a", "bee", "c"]);
  });

  it("removes a rule and leaves the others as they are", () => {
    expect(editedSet(rules, { kind: "remove", was: "b", deletes: false }).map((each) => each.name)).toEqual(["a", "c"]);
  });

  it("sends nothing of a rule that only the server says", () => {
    expect(Object.keys(editedSet([view("a")], { kind: "remove", was: "x", deletes: false })[0] ?? {})).toEqual([
      "name",
      "backend",
      "labels",
      "uri",
      "alias",
    ]);
  });

  it("names the field that is wrong", () => {
    expect(draftProblems(NEW_RULE, "", [])).toHaveProperty("name");
    expect(draftProblems({ ...NEW_RULE, name: "a", backend: "echo" }, "", [view("a")]).name).toContain("Another");
    expect(draftProblems({ ...NEW_RULE, name: "a", backend: "echo" }, "a", [view("a")])).toEqual({});
    expect(draftProblems({ ...NEW_RULE, name: "a", backend: "echo", labels: "zone" }, "", []).labels).toContain(
      "“zone”",
    );
  });
});

describe("a conflict", () => {
  it("has the version before, mine and theirs, and names what else changed", () => {
    const before = [rule("a"), rule("b"), rule("c")];
    const now = [rule("a", { backend: "vllm" }), rule("b", { alias: "bee" }), rule("d")];
    const edit = { kind: "put", was: "a", draft: { ...draftOf(rule("a")), labels: "zone=x" } } as const;
    const conflict = conflictOf(edit, before, now);
    expect(conflict.base?.backend).toBe("echo");
    expect(conflict.mine?.labels).toEqual({ zone: "x" });
    expect(conflict.theirs?.backend).toBe("vllm");
    expect(conflict.others).toEqual(["b", "c", "d"]);
  });

  it("shows a rule that somebody else removed, and one that two people added", () => {
    expect(conflictOf({ kind: "put", was: "a", draft: draftOf(rule("a")) }, [rule("a")], []).theirs).toBeNull();
    const added = { kind: "put", was: "", draft: draftOf(rule("n")) } as const;
    expect(conflictOf(added, [], [rule("n", { backend: "vllm" })]).theirs?.backend).toBe("vllm");
  });

  it("can be answered with mine on top of theirs, also where both made a rule of the same name", () => {
    const edit = { kind: "put", was: "", draft: draftOf(rule("n")) } as const;
    const now = [rule("n", { backend: "vllm" })];
    expect(editedSet(now, rebased(edit, now))).toEqual([rule("n")]);
    expect(rebased(edit, [])).toEqual(edit);
  });

  it("compares rules by what they demand", () => {
    expect(isSameRule(rule("a", { labels: { x: "1", y: "2" } }), rule("a", { labels: { y: "2", x: "1" } }))).toBe(true);
    expect(isSameRule(rule("a"), null)).toBe(false);
    expect(ruleFields(rule("a"))[2]?.[1]).toBe("every node");
  });
});

describe("how far the fleet is with a rule", () => {
  it("counts nodes that match, that have it, and that are stuck", () => {
    expect(satisfactionOf(view("a", { success: 30, queued: 4, blocked: 2, error: 1, downloading: 3 }))).toEqual({
      matches: 40,
      satisfied: 30,
      stuck: 3,
      underWay: 7,
    });
  });
});
