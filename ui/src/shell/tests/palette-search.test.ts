import { describe, expect, it } from "vitest";

import { actsOn, find, pagesAndActs } from "../palette-search";

const NAMED = {
  nodes: [
    { id: "n 1", name: "gpu-1", status: "healthy" },
    { id: "n2", name: "gpu-2", status: "pending" },
  ],
  models: ["llama"],
  backends: ["vllm"],
};
const ALL = ["nodes.act", "nodes.admit", "models.act", "scheduling.act", "inference", "backends.act"];

function sought(text: string, permissions: readonly string[] = ALL): (readonly [string, string])[] {
  const groups = find(actsOn(NAMED, permissions), text);
  return groups.flatMap((group) => group.found.map(({ name, href }) => [name, href] as const));
}

describe("acts on what has a name", () => {
  it("are found by verb and name, and lead to their dialog", () => {
    expect(sought("drain gpu")).toEqual([["Drain gpu-1", "/nodes/n%201?act=drain"]]);
    expect(sought("llama sca")).toEqual([["Scale llama", "/models/llama?act=scale"]]);
    expect(sought("delete")).toEqual([["Delete vllm", "/backends?act=delete&on=vllm"]]);
  });

  it("are not offered to those who may not do them", () => {
    expect(sought("gpu", ["nodes.act"])).toEqual([["Drain gpu-1", "/nodes/n%201?act=drain"]]);
    expect(sought("llama", ["inference"])).toEqual([["Chat with llama", "/chat?model=llama"]]);
  });

  it("do not fill a palette in which nothing was typed", () => {
    expect(sought("")).toEqual([]);
    expect(find(pagesAndActs(ALL), "")[0]?.title).toBe("Acts");
  });
});
