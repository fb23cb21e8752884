import { describe, expect, it } from "vitest";

import { signalOf } from "../signal";

const node = (id: string, status = "healthy") => ({ id, status, capability: "default" });
const operation = (id: string, success: number) => ({ id, state: "running", counts: { success, queued: 5 - success } });

describe("the signal to ask again", () => {
  it("stays while nothing about backends changes, in whatever order rows arrive", () => {
    expect(signalOf([node("a"), node("b")], [operation("o", 1)])).toBe(
      signalOf([node("b"), node("a")], [operation("o", 1)]),
    );
  });

  it("changes when a node comes or changes its status, and when an operation got further", () => {
    const before = signalOf([node("a")], [operation("o", 1)]);
    expect(signalOf([node("a"), node("b")], [operation("o", 1)])).not.toBe(before);
    expect(signalOf([node("a", "offline")], [operation("o", 1)])).not.toBe(before);
    expect(signalOf([node("a")], [operation("o", 2)])).not.toBe(before);
  });

  it("changes when a report shows something else than was asked for", () => {
    const drift = { id: "d", kind: "drift", why: "it is gone", count: 1 };
    const before = signalOf([node("a")], []);
    expect(signalOf([node("a")], [], [drift])).not.toBe(before);
    expect(signalOf([node("a")], [], [{ ...drift, kind: "pending" }])).toBe(before);
  });
});
