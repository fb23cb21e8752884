import { describe, expect, it } from "vitest";

import {
  allowedNodes,
  countsText,
  idleSeconds,
  NEW_SCHEDULING,
  type SchedulingView,
  scaleCommand,
  schedulingAsk,
  schedulingDraft,
  schedulingProblems,
  withPlaces,
} from "../scheduling-draft";

const view = (more: Partial<SchedulingView> = {}): SchedulingView => ({
  model: "chat",
  node_selector: { zone: "a" },
  pinned_nodes: ["n1"],
  pinned_names: ["gpu-1"],
  min_replicas: 1,
  max_replicas: 3,
  spread_all: false,
  idle_seconds: 600,
  route_policy: "prefix_cache",
  balance_abs_threshold: 4,
  balance_rel_threshold: 1.5,
  min_prefix_match: 0.3,
  source: "api",
  created_at: "",
  updated_at: "",
  updated_by: "admin",
  loaded: 1,
  loading: 0,
  problem: "",
  ...more,
});

describe("a rule of scheduling", () => {
  it("is the same after it was opened and saved without a change", () => {
    const before = view();
    expect(schedulingAsk(schedulingDraft(before), before)).toEqual({
      model: "chat",
      node_selector: { zone: "a" },
      pinned_nodes: ["n1"],
      min_replicas: 1,
      max_replicas: 3,
      spread_all: false,
      idle_seconds: 600,
      route_policy: "prefix_cache",
      balance_abs_threshold: 4,
      balance_rel_threshold: 1.5,
      min_prefix_match: 0.3,
    });
  });

  it("has no counts when it spreads over all nodes, whatever was typed before", () => {
    expect(schedulingAsk({ ...NEW_SCHEDULING, model: "chat", form: "spread", least: "5" }, null)).toMatchObject({
      spread_all: true,
      min_replicas: 0,
      max_replicas: 0,
    });
  });

  it("names the field that is wrong", () => {
    const draft = { ...NEW_SCHEDULING, model: "chat" };
    expect(schedulingProblems(draft)).toEqual({});
    expect(schedulingProblems({ ...draft, model: " " })).toHaveProperty("model");
    expect(schedulingProblems({ ...draft, least: "3", most: "2" })).toHaveProperty("most");
    expect(schedulingProblems({ ...draft, least: "3", most: "0" })).toEqual({});
    expect(schedulingProblems({ ...draft, least: "-1" })).toHaveProperty("least");
    expect(schedulingProblems({ ...draft, idle: "soon" })).toHaveProperty("idle");
    expect(schedulingProblems({ ...draft, form: "spread", idle: "10m" })).toHaveProperty("idle");
  });

  it("reads times as people type them", () => {
    expect(["", "never", "10m", "2h", "1d", "0s", "x"].map(idleSeconds)).toEqual([
      null,
      0,
      600,
      7200,
      86400,
      undefined,
      undefined,
    ]);
  });

  it("is told in the words of the command line", () => {
    expect(countsText(view())).toBe("1 to 3");
    expect(countsText(view({ max_replicas: 0 }))).toBe("1 or more");
    expect(countsText(view({ max_replicas: 1 }))).toBe("exactly 1");
    expect(countsText(view({ min_replicas: 0, max_replicas: 0 }))).toBe("when asked");
    expect(countsText(view({ spread_all: true }))).toBe("one on every node");
  });

  it("is the command that sets the same", () => {
    const before = view();
    expect(scaleCommand(schedulingAsk(schedulingDraft(before), before), () => "gpu-1")).toBe(
      "corral models scale chat --min 1 --max 3 --selector zone=a --idle 600s\ncorral models pin chat --node gpu-1",
    );
  });

  it("says where replicas would go", () => {
    const places = (node: string, to_node: string) =>
      withPlaces({ consequences: [{ node, to_node }] }).consequences[0]?.node;
    expect([places("a", "b"), places("", "b"), places("a", "")]).toEqual(["a → b", "b", "a"]);
  });

  it("allows nodes by labels and pins together", () => {
    const nodes = [
      { id: "n1", labels: { zone: "a" } },
      { id: "n2", labels: { zone: "a" } },
      { id: "n3", labels: { zone: "b" } },
    ];
    expect(allowedNodes(nodes, { zone: "a" }, new Set())).toHaveLength(2);
    expect(allowedNodes(nodes, { zone: "a" }, new Set(["n1", "n3"])).map((node) => node.id)).toEqual(["n1"]);
  });
});
