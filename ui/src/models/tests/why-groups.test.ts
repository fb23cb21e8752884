import { describe, expect, test } from "vitest";

import { groupSentence, groupVerdicts, needsSentence, scoreSentence, type Verdict } from "../why-groups";

const GIB = 1024 ** 3;

function verdict(node: string, code: string, more: Partial<Verdict> = {}): Verdict {
  return { node_id: node, node, code, ...more } as Verdict;
}

describe("verdicts", () => {
  test("are grouped by reason, with what is needed and the most that is free", () => {
    const small = Array.from({ length: 34 }, (_, index) =>
      verdict(`gpu-${index}`, "no_vram", {
        why: `has ${index}`,
        numbers: { needed: 9.1 * GIB, free: (index / 33) * 7.8 * GIB },
      }),
    );
    const { fitting, groups } = groupVerdicts([
      verdict("big", "fits"),
      ...small,
      verdict("away", "not_healthy", { why: "is offline" }),
    ]);
    expect(fitting.map(({ node }) => node)).toEqual(["big"]);
    expect(groups.map(groupSentence)).toEqual([
      "34 × not enough VRAM (needs 9.1 GiB, best free 7.8 GiB)",
      "1 × is offline",
    ]);
    expect(groups[0]?.verdicts[0]?.node).toBe("gpu-33");
  });

  test("with other needs or other sentences are other groups", () => {
    const { groups } = groupVerdicts([
      verdict("a", "no_ram", { numbers: { needed: GIB, free: 5 } }),
      verdict("b", "no_ram", { numbers: { needed: 2 * GIB, free: 5 } }),
      verdict("c", "unfit", { why: "cannot run the backend: it has no GPU" }),
      verdict("d", "unfit", { why: "cannot run the backend: it is a Mac" }),
    ]);
    expect(groups).toHaveLength(4);
  });

  test("are never empty: a code without a sentence is shown itself", () => {
    const { groups } = groupVerdicts([verdict("a", "some_new_code")]);
    expect(groups.map(groupSentence)).toEqual(["1 × some new code"]);
  });

  test("of nodes that fit tell their points", () => {
    expect(scoreSentence(verdict("a", "fits", { score: { files: 40, busy: -2.5 }, cards: ["gpu0"] }))).toBe(
      "files +40, busy −2.5, would get gpu0",
    );
  });
});

test("needs that nobody knows are said to be unknown", () => {
  expect(needsSentence({ source: "file size", ram: GIB, disk: GIB } as never)).toBe(
    "1.0 GiB of memory, 1.0 GiB of files (from: file size)",
  );
  expect(needsSentence({ source: "not known" } as never)).toContain("Not known");
});
