import { describe, expect, it } from "vitest";

import { detailOf } from "../event-lines";

describe("the facts of an event", () => {
  it("are in one line, without what is empty", () => {
    expect(detailOf({ name: "n1", why: "", targets: 2, nodes: ["a", "b"], seconds: { load: 3 } })).toBe(
      "name n1 · targets 2 · nodes a, b · seconds load 3",
    );
  });

  it("say what differs, and nothing of what stayed", () => {
    expect(detailOf({ before: "offline", after: "healthy" })).toBe("offline → healthy");
    expect(detailOf({ before: { rack: "a", name: "n" }, after: { rack: "b", name: "n", zone: "z" } })).toBe(
      "rack a → b · zone – → z",
    );
  });
});
