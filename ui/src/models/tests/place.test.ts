import { expect, test } from "vitest";

import { segmentsBelow } from "../../parts/address";
import { modelPath, placeOf } from "../place";

const BASE = import.meta.env.BASE_URL.replace(/\/$/, "");

test.each(["smollm2", "org/model", "gallery", "50%", "a%2Fb", "llama-3.1", "<b>x</b>", "ü #1?x", "models/models"])(
  "the page of %s is found again by its address",
  (name) => {
    const path = new URL(BASE + modelPath(name, "why"), "http://fleet.example").pathname;
    expect(placeOf(segmentsBelow(path, "/models"))).toEqual({ kind: "model", name, tab: "" });
  },
);

test("a path may name the tab", () => {
  expect(placeOf(segmentsBelow(`${BASE}/models/smollm2/why`, "/models"))).toEqual({
    kind: "model",
    name: "smollm2",
    tab: "why",
  });
});

test("other addresses lead to the lists", () => {
  expect(placeOf(segmentsBelow(`${BASE}/models`, "/models"))).toEqual({ kind: "lists" });
  expect(placeOf(segmentsBelow(`${BASE}/models/`, "/models"))).toEqual({ kind: "lists" });
  expect(placeOf(["%E0%A4%A"])).toMatchObject({ name: "%E0%A4%A" });
});
