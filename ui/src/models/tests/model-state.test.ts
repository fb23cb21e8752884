import { describe, expect, test } from "vitest";

import type { LoadRow, ReplicaRow } from "../../live/topics";
import { byModel, furthestFirst, isShownBy, modelWord, stateOf } from "../model-state";

const MODEL = { name: "m", state: "cold" };
const replica = (state: string) => ({ id: state, model: "m", state }) as ReplicaRow;
const load = (phase: string, id = phase) => ({ id, model: "m", phase }) as LoadRow;

describe("the state of a model", () => {
  test.each([
    [[], [], "cold"],
    [["loaded", "failed"], [], "loaded"],
    [["loaded"], ["failed"], "loaded"],
    [["reserved"], [], "loading"],
    [[], ["staging"], "loading"],
    [[], ["pending"], "pending"],
    [[], ["failed", "loading"], "loading"],
    [[], ["failed"], "failed"],
    [["unloading"], [], "cold"],
  ])("with replicas %j and loads %j is %s", (replicas, loads, state) => {
    expect(
      stateOf(
        MODEL,
        replicas.map(replica),
        loads.map((phase) => load(phase)),
      ),
    ).toBe(state);
  });

  test("is what a person made it, or what its file is", () => {
    expect(stateOf({ ...MODEL, is_disabled: true }, [replica("loaded")], [])).toBe("disabled");
    expect(stateOf({ ...MODEL, state: "unusable" }, [], [])).toBe("unusable");
    expect(stateOf({ ...MODEL, state: "elsewhere" }, [], [])).toBe("elsewhere");
  });

  test("says that no request gets there, as long as something is loaded", () => {
    const barred = { ...MODEL, state: "not_reachable" };
    expect(stateOf(barred, [replica("loaded")], [])).toBe("not_reachable");
    expect(stateOf(barred, [], [])).toBe("cold");
    expect(modelWord("not_reachable").label).toBe("Not reachable");
    expect(isShownBy("failing", "not_reachable")).toBe(true);
  });

  test("has a word, also while it waits", () => {
    expect(modelWord("pending").label).toBe("Waiting");
    expect(modelWord("loaded").label).toBe("Loaded");
  });
});

test("a load that is under way comes before one that failed", () => {
  expect(furthestFirst([load("failed"), load("pending"), load("staging")]).map(({ phase }) => phase)).toEqual([
    "staging",
    "pending",
    "failed",
  ]);
});

test("filters know the words of links", () => {
  expect(isShownBy("failing", "failed")).toBe(true);
  expect(isShownBy("failing", "cold")).toBe(false);
  expect(isShownBy("loading", "pending")).toBe(true);
  expect(isShownBy("", "cold")).toBe(true);
});

test("rows are found by their model", () => {
  expect(byModel([replica("loaded"), replica("lost")]).get("m")).toHaveLength(2);
});
