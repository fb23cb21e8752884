import { describe, expect, it } from "vitest";

import type { Schema } from "../../api/client";
import { findUpgrades, outdatedCount, upgradeRows } from "../upgrade-rows";

const node = (name: string, more: Partial<Schema<"NodeUpgradeView">> = {}): Schema<"NodeUpgradeView"> => ({
  node_id: name,
  node_name: name,
  node_status: "healthy",
  version: "1.4",
  digest: "sha256:old",
  freshness: "outdated",
  reason: "",
  differs: false,
  ...more,
});

const upgrades = (nodes: Schema<"NodeUpgradeView">[]): Schema<"UpgradesView"> => ({
  checked_at: null,
  problem: "",
  items: [
    {
      name: "llama",
      needs_upgrade: true,
      installed_version: "1.4",
      installed_digest: "sha256:old",
      available_version: "1.5",
      available_digest: "sha256:new",
      uri: "oci://x",
      looked_at: null,
      nodes,
    },
  ],
});

describe("upgrades", () => {
  it("go from what nodes have to what is offered; nodes with the same build share a row", () => {
    const rows = upgradeRows(upgrades([node("a"), node("b"), node("c", { digest: "sha256:older" })]));
    expect(rows.map((row) => [row.from.digest, row.to.digest, row.nodes.length])).toEqual([
      ["sha256:old", "sha256:new", 2],
      ["sha256:older", "sha256:new", 1],
    ]);
  });

  it("begin with what is outdated, and tell why something is not known", () => {
    const known = upgrades([
      node("a", { freshness: "current" }),
      node("b", { freshness: "unknown", reason: "it tells no digest" }),
      node("c"),
      node("d", { freshness: "current", differs: true }),
    ]);
    const rows = upgradeRows(known);
    expect(rows.map((row) => row.state)).toEqual(["outdated", "differs", "unknown", "current"]);
    expect(rows[2]?.reason).toBe("it tells no digest");
    expect(findUpgrades(rows, { backend: "", isWhole: false })).toHaveLength(3);
    expect(findUpgrades(rows, { backend: "other", isWhole: true })).toHaveLength(0);
    expect(outdatedCount(known)).toBe(1);
  });
});
