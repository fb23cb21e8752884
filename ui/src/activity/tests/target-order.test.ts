import { describe, expect, it } from "vitest";

import type { TargetRow } from "../../live/topics";
import { byTrouble, canRetry, countsOf, isOpen, mayStillFinish } from "../target-order";

function target(node: string, status: string): TargetRow {
  return {
    node_id: node,
    node_name: node,
    backend: "echo",
    status,
    waits_for_node: false,
    message: "",
    reason_code: "",
    reason_fields: {},
    attempts: 0,
    next_try_at: null,
    changed_at: "2026-01-01T00:00:00Z",
    percentage: 0,
    phase: "",
    file_name: "",
    current_bytes: 0,
    total_bytes: 0,
    bytes_per_second: 0,
    seconds_left: null,
    files: [],
  };
}

describe("targets", () => {
  it("are shown with the worst first, then by name with numbers in order", () => {
    const shown = [
      target("n-10", "success"),
      target("n-2", "success"),
      target("n-9", "error"),
      target("n-3", "blocked"),
    ];

    expect(shown.sort(byTrouble).map((one) => one.node_name)).toEqual(["n-3", "n-9", "n-2", "n-10"]);
  });

  it("are counted in the same order", () => {
    expect(countsOf([target("a", "success"), target("b", "error"), target("c", "success")])).toEqual([
      { status: "error", count: 1 },
      { status: "success", count: 2 },
    ]);
  });

  it("of a state that this version does not know are last", () => {
    expect([target("a", "novel"), target("b", "success")].sort(byTrouble)[0]?.status).toBe("success");
  });

  it("are tried again only where that may help, and taken back only while they are open", () => {
    expect(canRetry(target("a", "error"))).toBe(true);
    expect(canRetry(target("a", "success"))).toBe(false);
    expect(isOpen(target("a", "queued"))).toBe(true);
    expect(isOpen(target("a", "cancelled"))).toBe(false);
  });

  it("that were sent may finish in spite of a cancel", () => {
    expect(mayStillFinish(target("a", "running_on_worker"))).toBe(true);
    expect(mayStillFinish(target("a", "queued"))).toBe(false);
  });
});
