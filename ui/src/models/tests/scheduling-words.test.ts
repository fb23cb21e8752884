import { expect, test } from "vitest";

import { countsText, idleText, placesText } from "../scheduling-words";

test.each([
  [{ spread_all: true, min_replicas: 0, max_replicas: 0 }, "one on every node"],
  [{ spread_all: false, min_replicas: 0, max_replicas: 0 }, "when asked"],
  [{ spread_all: false, min_replicas: 2, max_replicas: 2 }, "exactly 2"],
  [{ spread_all: false, min_replicas: 1, max_replicas: 0 }, "1 or more"],
  [{ spread_all: false, min_replicas: 1, max_replicas: 4 }, "1 to 4"],
])("%j reads as %s", (rule, text) => {
  expect(countsText(rule)).toBe(text);
});

test("places are labels and nodes, or any node", () => {
  expect(placesText({ node_selector: { rack: "a", gpu: "h100" }, pinned_nodes: ["n1"], pinned_names: ["gpu-1"] })).toBe(
    "gpu=h100, rack=a, gpu-1",
  );
  expect(placesText({ node_selector: {}, pinned_nodes: [], pinned_names: [] })).toBe("any node");
});

test("idle replicas are unloaded never, after a time, or as the settings say", () => {
  expect(idleText({ idle_seconds: 0 })).toBe("never");
  expect(idleText({ idle_seconds: 600 })).toBe("10 min");
  expect(idleText({ idle_seconds: null })).toBe("");
});
