import { describe, expect, it } from "vitest";

import type { TargetRow } from "../../live/topics";
import { situationOf } from "../target-words";

function target(more: object): TargetRow {
  return { status: "queued", waits_for_node: false, message: "", phase: "", reason_fields: {}, ...more } as TargetRow;
}

describe("how a target stands", () => {
  it("is told by what proves it", () => {
    expect(situationOf(target({ status: "success", reason_fields: { rung: "digest" }, message: "digest" }))).toBe(
      "its report shows it, with the right digest",
    );
    expect(situationOf(target({ status: "success", reason_fields: {}, message: "a newer proof" }))).toBe(
      "a newer proof",
    );
  });

  it("says that it waits for its node, and what happened last", () => {
    expect(situationOf(target({ waits_for_node: true }))).toBe("waits for the node to come back");
    expect(situationOf(target({ waits_for_node: true, message: "no answer" }))).toContain("last: no answer");
  });

  it("does not seem to go on at a node that is silent", () => {
    const asked = target({ status: "downloading", phase: "downloading" });
    expect(situationOf(asked, "offline")).toBe("the node is silent; it goes on when the node is back");
    expect(situationOf(asked, "healthy")).toBe("downloading");
    expect(situationOf(target({ status: "error", message: "disk full" }), "offline")).toBe("disk full");
  });

  it("is the server's sentence otherwise", () => {
    expect(situationOf(target({ status: "error", message: "disk full" }))).toBe("disk full");
  });
});
