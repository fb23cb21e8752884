import { expect, test } from "vitest";

import { isTemperature } from "../talk-settings";
import { readRanks } from "../try-rerank";
import { cosine, lengthOf, linesOf, readVectors } from "../vectors";

test("vectors are compared by their direction", () => {
  expect(cosine([1, 0], [2, 0])).toBeCloseTo(1);
  expect(cosine([1, 0], [0, 1])).toBe(0);
  expect(cosine([0, 0], [1, 1])).toBe(0);
  expect(lengthOf([3, 4])).toBe(5);
});

test("vectors are read in the order of the texts", () => {
  const body = {
    data: [
      { index: 1, embedding: [2] },
      { index: 0, embedding: [1] },
    ],
  };
  expect(readVectors(body)).toEqual([[1], [2]]);
  expect(() => readVectors({})).toThrow("no vectors");
  expect(() => readVectors({ data: [{ index: 0 }] })).toThrow("no vectors");
});

test("ranks name their texts", () => {
  expect(readRanks({ results: [{ index: 1, relevance_score: 0.9 }] }, ["a", "b"])).toEqual([{ text: "b", score: 0.9 }]);
  expect(() => readRanks(null, [])).toThrow("no ranks");
});

test("texts are lines, without empty ones", () => {
  expect(linesOf(" a \n\n b\n")).toEqual(["a", "b"]);
});

test.each([
  ["0", true],
  ["0.7", true],
  ["2", true],
  ["2.1", false],
  ["-1", false],
  ["", false],
  ["x", false],
])("a temperature of %s is one: %s", (text, isOne) => {
  expect(isTemperature(text)).toBe(isOne);
});
