import { describe, expect, it } from "vitest";

import type { NodeRow } from "../../live/topics";
import { byTrouble, groupKeys, groupNodes, haveSamePlaces, isShown, memoryOf, readFilter } from "../selection";

const NOTHING = { total: null, used: null, reserved: null };

function node(name: string, more: Partial<NodeRow> = {}): NodeRow {
  return {
    id: name,
    name,
    kind: "corral",
    version: "",
    status: "healthy",
    reason: "",
    since: null,
    heard_at: null,
    address: "10.0.0.1:1",
    labels: {},
    capability: "",
    vram: NOTHING,
    ram: NOTHING,
    disk: { total: null, free: null },
    gpus: 0,
    slots: 1,
    replicas: [],
    in_flight: 0,
    problems: [],
    pending_since: null,
    fingerprint: "",
    draining_by: "",
    heartbeat_seconds: 10,
    ...more,
  };
}

function shown(query: string, candidate: NodeRow): boolean {
  const parameters = new URLSearchParams(query);
  return isShown(
    candidate,
    readFilter((name) => parameters.get(name) ?? ""),
  );
}

describe("a filter of the fleet", () => {
  const gpu = node("gpu-1", {
    status: "offline",
    labels: { rack: "a", zone: "x=y" },
    replicas: [{ model: "smollm2", state: "loaded", in_flight: 0 }],
    disk: { total: 100, free: 10 },
  });

  it.each([
    "",
    "status=offline",
    "status=unhealthy,offline",
    "label=rack",
    "label=rack%3Da",
    "label=zone%3Dx%3Dy",
    "text=GPU+smol",
    "disk=short",
    "kind=corral",
  ])("shows a node for %s", (query) => {
    expect(shown(query, gpu)).toBe(true);
  });

  it.each(["status=healthy", "label=rack%3Db", "label=shelf", "text=gpu+absent", "kind=localai"])(
    "hides it for %s",
    (query) => {
      expect(shown(query, gpu)).toBe(false);
    },
  );

  it("calls no disk short of which nothing is known", () => {
    expect(shown("disk=short", node("n"))).toBe(false);
  });
});

describe("groups", () => {
  const nodes = [
    node("b-10", { labels: { rack: "2", "node.name": "b-10" } }),
    node("b-2", { labels: { rack: "2", "node.name": "b-2" } }),
    node("a-1", { status: "unhealthy", labels: { rack: "10", "node.name": "a-1" } }),
    node("loose"),
  ];

  it("are in order, with what has no label last and every node in its place", () => {
    expect(groupNodes(nodes, "rack").map((group) => [group.name, group.nodes.map((one) => one.name)])).toEqual([
      ["2", ["b-2", "b-10"]],
      ["10", ["a-1"]],
      ["without this label", ["loose"]],
    ]);
    expect(groupNodes(nodes, "")[0]?.nodes.map((one) => one.name)).toEqual(["a-1", "b-2", "b-10", "loose"]);
  });

  it("stay the same while only numbers and states change", () => {
    const busier = nodes.map((one) => ({ ...one, in_flight: 7, status: "offline" }));

    expect(haveSamePlaces(nodes, busier, "rack")).toBe(true);
    expect(haveSamePlaces(nodes, nodes.slice(1), "rack")).toBe(false);
    expect(haveSamePlaces([node("b", { labels: { rack: "3" } })], [node("b")], "rack")).toBe(false);
  });

  it("are offered for labels that nodes share", () => {
    expect(groupKeys(nodes)).toEqual(["rack"]);
  });
});

describe("a list by trouble", () => {
  it("has what needs somebody first, then names with their numbers in order", () => {
    const nodes = [node("n-10"), node("n-2"), node("n-3", { status: "unhealthy" })];

    expect(nodes.sort(byTrouble).map((one) => one.name)).toEqual(["n-3", "n-2", "n-10"]);
  });
});

describe("the memory that decides", () => {
  it("is that of the GPUs where there are some", () => {
    expect(memoryOf(node("n", { vram: { total: 5, used: 1, reserved: 0 } })).name).toBe("VRAM");
    expect(memoryOf(node("n", { vram: { total: 0, used: 0, reserved: 0 } })).name).toBe("RAM");
  });
});
