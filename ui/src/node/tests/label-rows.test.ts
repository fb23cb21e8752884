import { describe, expect, it } from "vitest";

import { labelRows } from "../label-rows";

describe("labels of a node", () => {
  const rows = labelRows({
    labels: { "node.name": "n", rack: "a", zone: "z" },
    admin_labels: { rack: "a" },
    removed_labels: ["shelf"],
  });

  it("say where each comes from", () => {
    expect(rows.map((row) => [row.key, row.origin])).toEqual([
      ["node.name", "found by Corral"],
      ["rack", "set by hand"],
      ["shelf", "reported, taken away by hand"],
      ["zone", "reported by the worker"],
    ]);
  });

  it("can be taken away unless they always come back", () => {
    expect(rows.filter((row) => row.canRemove).map((row) => row.key)).toEqual(["rack", "zone"]);
  });
});
