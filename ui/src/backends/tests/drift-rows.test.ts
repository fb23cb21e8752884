import { describe, expect, it } from "vitest";

import { askOf, choiceOf } from "../acts";
import { type DriftItem, findDrift, fixesOf } from "../drift-rows";

const item = (node: string, more: Partial<DriftItem> = {}): DriftItem => ({
  node_id: node,
  node_name: `name-${node}`,
  backend: "echo",
  wanted: "installed",
  has: "nothing",
  since: null,
  why: "it is offline",
  rule: "",
  fix: { label: "Install", operation: askOf(choiceOf("install", "echo", [node])) },
  ...more,
});

describe("drift", () => {
  it("is mended by one operation for all nodes that need the same", () => {
    const other = { label: "Delete", operation: askOf(choiceOf("delete", "vllm", ["c"])) };
    const fixes = fixesOf([item("a"), item("b"), item("c", { fix: other }), item("d", { fix: null })]);
    expect(fixes.map((fix) => [fix.verb, fix.backend, fix.nodes])).toEqual([
      ["install", "echo", ["a", "b"]],
      ["delete", "vllm", ["c"]],
    ]);
  });

  it("is found by node, backend and words", () => {
    const items = [item("a"), item("b", { backend: "vllm", why: "its disk is full" })];
    expect(findDrift(items, { text: "", node: "b", backend: "" })).toHaveLength(1);
    expect(findDrift(items, { text: "DISK", node: "", backend: "" })[0]?.node_id).toBe("b");
    expect(findDrift(items, { text: "", node: "", backend: "echo" })[0]?.node_id).toBe("a");
  });
});
