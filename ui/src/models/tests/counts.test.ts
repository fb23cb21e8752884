import { expect, test } from "vitest";

import { saysNothing, wishOf } from "../act-plans";
import { countsOf, countsProblem, readCounts, scaleCommand } from "../counts";

const bounds = (min_replicas: number, max_replicas: number, spread_all = false) => ({
  min_replicas,
  max_replicas,
  spread_all,
});

test.each([bounds(0, 0), bounds(2, 2), bounds(1, 4), bounds(1, 0), bounds(0, 0, true)])(
  "%j is what its fields mean",
  (rule) => {
    expect(readCounts(countsOf(rule))).toEqual(rule);
    expect(countsProblem(countsOf(rule))).toBe("");
  },
);

test("numbers that make no sense are said to", () => {
  const counts = countsOf(bounds(1, 1));
  for (const exactly of ["", "0", "-1", "1.5", "x", "99999"])
    expect(countsProblem({ ...counts, exactly })).not.toBe("");
  expect(countsProblem({ ...counts, mode: "between", least: "3", most: "2" })).toContain("below");
  expect(countsProblem({ ...counts, mode: "between", least: "3", most: "0" })).toBe("");
});

test("the command does the same", () => {
  expect(scaleCommand("my model", countsOf(bounds(2, 2)))).toBe("corral models scale 'my model' 2");
  expect(scaleCommand("m", countsOf(bounds(1, 3)))).toBe("corral models scale m --min 1 --max 3");
  expect(scaleCommand("m", countsOf(bounds(0, 0, true)))).toBe("corral models scale m --spread");
  expect(scaleCommand("m", countsOf(bounds(0, 0)))).toBe("corral models scale m --auto");
});

test("a rule that wants nothing is none", () => {
  expect(saysNothing(wishOf(null))).toBe(true);
  expect(saysNothing({ ...wishOf(null), pinned_nodes: ["n"] })).toBe(false);
  expect(saysNothing({ ...wishOf(null), idle_seconds: 0 })).toBe(false);
});
