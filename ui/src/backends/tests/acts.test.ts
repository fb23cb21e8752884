import { describe, expect, it } from "vitest";

import type { Schema } from "../../api/client";
import {
  askOf,
  choiceOf,
  choiceOfAsk,
  choiceProblem,
  choosable,
  commandOf,
  labelOf,
  meant,
  nameToType,
  obstacleOf,
  outcomeOf,
  verdictGroups,
} from "../acts";

const node = (id: string, labels: Record<string, string> = {}, more = {}) => ({
  id,
  name: `name-of-${id}`,
  kind: "corral",
  status: "healthy",
  labels,
  ...more,
});

const planned = (more: Partial<Schema<"PlannedView">> = {}): Schema<"PlannedView"> => ({
  node_id: "a",
  node_name: "a",
  node_status: "healthy",
  backend: "echo",
  blocked: "",
  unknown: "",
  reached: false,
  download_bytes: null,
  digests: [],
  ...more,
});

const plan = (items: Schema<"PlannedView">[], more: Partial<Schema<"Plan">> = {}): Schema<"Plan"> => ({
  items,
  hash: "h",
  counts: { fits: 0, blocked: 0, unknown: 0, already: 0 },
  replicas_end: [],
  rules: [],
  text: "",
  ...more,
});

describe("the nodes that an act means", () => {
  const nodes = [node("a", { zone: "x" }), node("b", { zone: "y" }), node("c", { zone: "x" })];

  it("are never agents or machines that wait for approval", () => {
    expect(choosable([node("a"), node("b", {}, { kind: "agent" }), node("c", {}, { status: "pending" })])).toHaveLength(
      1,
    );
  });

  it("follow the labels as they are typed", () => {
    const choice = { ...choiceOf("install", "echo"), reach: "labels" as const, labels: "zone=x" };
    expect(meant(choice, nodes).map((each) => each.id)).toEqual(["a", "c"]);
    expect(meant({ ...choice, labels: "zone" }, nodes)).toEqual([]);
    expect(choiceProblem({ ...choice, labels: "zone" }, nodes)).toContain("“zone”");
    expect(choiceProblem({ ...choice, labels: "" }, nodes)).toContain("label");
    expect(choiceProblem({ ...choice, labels: "zone=nowhere" }, nodes)).toBe("No node is meant.");
  });

  it("are those that are ticked", () => {
    const choice = choiceOf("delete", "echo", ["b"]);
    expect(choice.reach).toBe("nodes");
    expect(meant(choice, nodes).map((each) => each.id)).toEqual(["b"]);
    expect(choiceProblem({ ...choice, nodes: new Set() }, nodes)).toContain("Tick");
  });
});

describe("what is asked of the server", () => {
  it("names only the reach that was chosen, whatever else was typed before", () => {
    const choice = { ...choiceOf("install", "echo", ["b"]), labels: "zone=x" };
    expect(askOf(choice)).toMatchObject({ nodes: ["b"], labels: {} });
    expect(askOf({ ...choice, reach: "all" })).toMatchObject({ nodes: [], labels: {} });
    expect(askOf({ ...choice, reach: "labels" })).toMatchObject({ nodes: [], labels: { zone: "x" } });
  });

  it("is forced only for installs", () => {
    expect(askOf({ ...choiceOf("delete", "echo"), isForced: true }).force).toBe(false);
    expect(askOf({ ...choiceOf("install", "echo"), isForced: true }).force).toBe(true);
  });

  it("survives being proposed by somebody else", () => {
    for (const choice of [
      choiceOf("upgrade", "echo", ["a", "b"]),
      { ...choiceOf("install", "mine"), uri: "oci://x/y", reach: "labels" as const, labels: "zone=x", isForced: true },
      choiceOf("delete", "echo"),
    ]) {
      expect(askOf(choiceOfAsk(askOf(choice)))).toEqual(askOf(choice));
    }
  });

  it("is the command that asks the same, with names of nodes", () => {
    const ask = askOf(choiceOf("install", "echo", ["b"]));
    expect(commandOf(ask, (id) => `name of ${id}`)).toBe("corral backends install echo --node 'name of b'");
    const byUri = askOf({ ...choiceOf("install", "mine"), uri: "oci://registry.example/mine:1" });
    expect(commandOf(byUri, String)).toBe("corral backends install --uri oci://registry.example/mine:1 --name mine");
  });
});

describe("a plan", () => {
  const items = [
    planned(),
    planned({ node_id: "b", blocked: "its disk is full" }),
    planned({ node_id: "c", reached: true }),
    planned({ node_id: "d", unknown: "the registry is away" }),
  ];

  it("shows what is in the way first, and groups nodes by verdict", () => {
    expect(verdictGroups(items).map((group) => group.verdict)).toEqual(["blocked", "unknown", "fits", "already"]);
  });

  it("names the act and how many nodes it reaches", () => {
    expect(labelOf(choiceOf("delete", "vllm"), plan(items))).toBe("Delete vllm on 2 nodes");
  });

  it("cannot be acted on where a rule forbids it or nothing would be sent", () => {
    expect(obstacleOf(plan(items))).toBeNull();
    expect(obstacleOf(plan(items, { rules: ["the fleet rule x demands vllm"] }))).toContain("rule");
    expect(obstacleOf(plan([planned({ reached: true })]))).toContain("nothing to do");
    expect(obstacleOf(plan([planned({ blocked: "no" })]))).toContain("blocked");
  });

  it("asks for the name only where replicas that answer, or may answer, end", () => {
    const ending = (in_flight: number | null) => [{ node_id: "a", node: "a", model: "m", in_flight }];
    const choice = choiceOf("delete", "vllm");
    expect(nameToType(choice, plan(items))).toBeNull();
    expect(nameToType(choice, plan(items, { replicas_end: ending(0) }))).toBeNull();
    expect(nameToType(choice, plan(items, { replicas_end: ending(2) }))).toBe("vllm");
    expect(nameToType(choice, plan(items, { replicas_end: ending(null) }))).toBe("vllm");
  });

  it("says what waits for a node that is away", () => {
    expect(outcomeOf(planned({ node_status: "offline" }), "install")).toBe("when it comes back");
    expect(outcomeOf(planned({ node_status: "offline", unknown: "no disk told" }), "install")).toBe(
      "when it comes back; no disk told",
    );
  });

  it("does not repeat in each row what the act and the group say", () => {
    expect(outcomeOf(planned({}), "install")).toBe("");
    expect(outcomeOf(planned({ reached: true }), "delete")).toBe("it is not there");
  });
});
