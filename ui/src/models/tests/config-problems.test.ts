import { expect, test } from "vitest";

import { lineRange, problemOf } from "../config-problems";

test.each([
  ["config: line 3: parameters.model: is missing", 3, "parameters.model", "is missing"],
  [
    "config: is not YAML: mapping values are not allowed here in line 7",
    7,
    "",
    "is not YAML: mapping values are not allowed here in line 7",
  ],
  ["line 12: sturgeon is no key that is known", 12, "", "sturgeon is no key that is known"],
  [
    "name: must stay 'a', got 'b'; copy the model instead",
    null,
    "name",
    "must stay 'a', got 'b'; copy the model instead",
  ],
  ["the model a is another one by now", null, "", "the model a is another one by now"],
  [
    "config: line 4: template.chat: line 2 of the template: unclosed",
    4,
    "template.chat",
    "line 2 of the template: unclosed",
  ],
])("%s", (sentence, line, key, text) => {
  expect(problemOf(sentence)).toEqual({ line, key, text });
});

test("a line can be found in its text", () => {
  const text = "one\ntwo\nthree";
  expect(lineRange(text, 2)).toEqual({ start: 4, end: 7 });
  expect(lineRange(text, 3)).toEqual({ start: 8, end: 13 });
  expect(lineRange(text, 4)).toBeNull();
  expect(lineRange(text, 0)).toBeNull();
});
