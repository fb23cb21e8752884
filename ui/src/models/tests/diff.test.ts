import { describe, expect, test } from "vitest";

import { diffHunks, diffLines } from "../diff";

function marks(before: string, after: string): string[] {
  const signs = { same: " ", added: "+", removed: "-" };
  return diffLines(before, after).map((line) => signs[line.kind] + line.text);
}

describe("a diff", () => {
  test("shows changed lines and keeps the others", () => {
    expect(marks("a\nb\nc\n", "a\nB\nc\nd\n")).toEqual([" a", "-b", "+B", " c", "+d"]);
  });

  test("of equal texts has no hunks", () => {
    expect(diffHunks("a\nb", "a\nb\n")).toEqual([]);
  });

  test("of an empty text adds all", () => {
    expect(marks("", "a\nb")).toEqual(["+a", "+b"]);
    expect(marks("a", "")).toEqual(["-a"]);
  });

  test("numbers lines on both sides", () => {
    expect(diffLines("a\nb", "x\na\nb").map((line) => [line.before, line.after])).toEqual([
      [null, 1],
      [1, 2],
      [2, 3],
    ]);
  });

  test("puts changes that are far apart into hunks of their own", () => {
    const lines = Array.from({ length: 40 }, (_, index) => `line ${index}`);
    const changed = lines.with(2, "two").with(30, "thirty");
    const hunks = diffHunks(lines.join("\n"), changed.join("\n"), 2);
    expect(hunks.map((hunk) => hunk.length)).toEqual([6, 6]);
    expect(hunks[1]?.[0]?.before).toBe(29);
  });

  test("joins changes whose surroundings touch, without repeating a line", () => {
    const lines = Array.from({ length: 12 }, (_, index) => `line ${index}`);
    const changed = lines.with(4, "four").with(7, "seven");
    const hunks = diffHunks(lines.join("\n"), changed.join("\n"), 2);
    expect(hunks).toHaveLength(1);
    const numbers = (hunks[0] ?? []).flatMap((line) => (line.before === null ? [] : [line.before]));
    expect(numbers).toEqual([...new Set(numbers)]);
    expect(numbers).toEqual([3, 4, 5, 6, 7, 8, 9, 10]);
  });

  test("gives back both texts, whatever they are", () => {
    let seed = 7;
    const random = (most: number) => {
      seed = (seed * 1103515245 + 12345) % 2147483648;
      return seed % most;
    };
    for (let round = 0; round < 300; round += 1) {
      const text = () => Array.from({ length: random(12) }, () => "abc".charAt(random(3))).join("\n");
      const [before, after] = [text(), text()];
      const lines = diffLines(before, after);
      expect(lines.flatMap((line) => (line.kind === "added" ? [] : [line.text])).join("\n")).toBe(before);
      expect(lines.flatMap((line) => (line.kind === "removed" ? [] : [line.text])).join("\n")).toBe(after);
    }
  });

  test("of two large strangers ends at once", () => {
    const many = (word: string) => Array.from({ length: 5000 }, (_, index) => `${word} ${index}`).join("\n");
    expect(diffLines(many("a"), many("b"))).toHaveLength(10_000);
  });
});
