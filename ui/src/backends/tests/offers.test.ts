import { describe, expect, it } from "vitest";

import type { Schema } from "../../api/client";
import { findOffers, fitText, type Offer, obstacles, offerRow, tagsOf } from "../offers";

const judged = (
  verdict: string,
  nodes: string[],
  more: Partial<Schema<"NodesFitView">> = {},
): Schema<"NodesFitView"> => ({
  verdict,
  build: "",
  installed: false,
  reason: "",
  would_fit: [],
  nodes,
  installed_on: [],
  ...more,
});

const offer = (name: string, more: Partial<Offer> = {}): Offer => ({
  id: `corral@${name}`,
  name,
  gallery: "corral",
  meta: false,
  development: false,
  alias: "",
  description: "",
  license: "",
  version: "1",
  tags: [],
  urls: [],
  uri: "",
  mirrors: [],
  capabilities: {},
  fits: [],
  ...more,
});

const all = { text: "", tag: "", state: "", isWhole: false } as const;

describe("what galleries offer", () => {
  it("says how many nodes could have it", () => {
    const nodes = Array.from({ length: 38 }, (_, index) => `n${index}`);
    const row = offerRow(
      offer("vllm", { fits: [judged("fits", nodes), judged("blocked", ["x", "y"], { reason: "no GPU" })] }),
    );
    expect(fitText(row)).toBe("38 of 40 nodes");
    expect(fitText(offerRow(offer("vllm")))).toBe("no nodes yet");
    expect(fitText(offerRow(offer("vllm", { fits: [judged("unknown", ["a"])] })))).toBe("0 of 1 node, 1 unknown");
  });

  it("tells the reasons of nodes that cannot have it, the commonest first", () => {
    const fits = [
      judged("blocked", ["a"], { reason: "full" }),
      judged("blocked", ["b", "c"], { reason: "no GPU" }),
      judged("fits", ["d"]),
    ];
    expect(obstacles(offer("vllm", { fits }))).toEqual([
      { reason: "no GPU", nodes: ["b", "c"] },
      { reason: "full", nodes: ["a"] },
    ]);
  });

  it("leaves out builds for certain hardware until somebody searches or asks for all", () => {
    const rows = [
      offer("llama-cpp", { meta: true, alias: "llama-cpp", capabilities: { default: "cpu-llama-cpp" } }),
      offer("cpu-llama-cpp", { alias: "llama-cpp" }),
      offer("new-llama", { development: true }),
      offer("echo"),
    ].map(offerRow);
    const names = (query: object) => findOffers(rows, { ...all, ...query }).map((row) => row.offer.name);
    expect(names({})).toEqual(["llama-cpp", "echo"]);
    expect(names({ text: "CPU llama" })).toEqual(["cpu-llama-cpp"]);
    expect(names({ isWhole: true })).toHaveLength(4);
  });

  it("is found by tag, fit and what is installed", () => {
    const rows = [
      offer("a", { tags: ["TTS"], fits: [judged("fits", ["x"], { installed_on: ["x"] })] }),
      offer("b", { tags: ["LLM"], fits: [judged("blocked", ["x"])] }),
    ].map(offerRow);
    const names = (query: object) => findOffers(rows, { ...all, ...query }).map((row) => row.offer.name);
    expect(tagsOf(rows)).toEqual(["LLM", "TTS"]);
    expect(names({ tag: "LLM" })).toEqual(["b"]);
    expect(names({ state: "fits" })).toEqual(["a"]);
    expect(names({ state: "installed" })).toEqual(["a"]);
  });
});
