import { expect, test } from "vitest";

import type { Schema } from "../../api/client";
import { doubtsOf, downloadText, pullCommand } from "../pull-words";

const GIB = 1024 ** 3;
const PLAN: Schema<"PullPlanView"> = {
  name: "qwen",
  config: "name: qwen\n",
  files: [
    { path: "q.gguf", url: "https://hub/q.gguf", size: 2 * GIB, digest: "sha256:1" },
    { path: "t.json", url: "https://hub/t.json", size: null, digest: "" },
  ],
  bytes: 2 * GIB,
  needed_bytes: GIB,
  free_bytes: 9 * GIB,
  store: "host:/models",
  memory_bytes: 3 * GIB,
  choices: [],
  notes: ["a note"],
  licence: "",
  reference: "qwen",
  resolved: "hf://a/b@c",
  refusal: "",
  hash: "h",
  text: "",
};

test("a download is told with what is there, what is unknown and what is free", () => {
  expect(downloadText(PLAN)).toBe(
    "2.0 GiB and 1 file of unknown size, of which 1.0 GiB are there already; 9.0 GiB are free in host:/models",
  );
});

test("only a build that fits nowhere is a reason to doubt", () => {
  const choice = { name: "Q4", bytes: 1, files: 1, needed_bytes: 1, is_chosen: true };
  expect(doubtsOf({ ...PLAN, choices: [{ ...choice, fits: false }] })).toHaveLength(1);
  expect(doubtsOf({ ...PLAN, choices: [{ ...choice, fits: null }] })).toEqual([]);
  expect(doubtsOf(PLAN)).toEqual([]);
});

test("the command quotes what needs it", () => {
  expect(pullCommand({ reference: "hf://a/b", name: "", build: "Q4_K_M" })).toBe(
    "corral models pull hf://a/b --build Q4_K_M",
  );
  expect(pullCommand({ reference: "a b", name: "it's", build: "" })).toBe("corral models pull 'a b' --name 'it'\\''s'");
});
