import { describe, expect, it } from "vitest";

import type { Schema } from "../../api/client";
import { findRows, matrixOf, namesText } from "../matrix-rows";

const nodes = (count: number) =>
  Array.from({ length: count }, (_, index) => ({ id: `n${index}`, name: `node-${index}`, status: "healthy" }));

const on = (node: string, more: Partial<Schema<"NodeBackendView">> = {}): Schema<"NodeBackendView"> => ({
  node_id: node,
  node_name: node,
  node_status: "healthy",
  is_system: false,
  installed_at: "2026-01-01T00:00:00Z",
  version: "1",
  uri: "",
  digest: "sha256:a",
  seen_at: "2026-01-02T00:00:00Z",
  age_seconds: 1,
  ...more,
});

const listing = (...items: [string, Schema<"NodeBackendView">[]][]): Schema<"FleetBackends"> => ({
  items: items.map(([name, own]) => ({ name, is_meta: false, nodes: own })),
  unheard: [],
});

describe("the matrix", () => {
  it("has a row for each node and a column for each backend, also one that is only wanted", () => {
    const matrix = matrixOf(listing(["b", [on("n0")]], ["a", [on("n1")]]), nodes(2), [{ node_id: "n0", backend: "c" }]);
    expect(matrix.backends).toEqual(["a", "b", "c"]);
    expect(matrix.rows.map((row) => row.key)).toEqual(["n0", "n1"]);
    expect(matrix.rows[0]?.cells.get("b")).toMatchObject({ version: "1", isThere: true, drifted: 0 });
    expect(matrix.rows[0]?.cells.get("a")).toBeUndefined();
    expect(matrix.rows[0]?.cells.get("c")).toMatchObject({ isThere: false, drifted: 1 });
  });

  it("marks a build that differs from the one of most nodes, and not what is not told", () => {
    const own = [on("n0"), on("n1"), on("n2", { digest: "sha256:b" }), on("n3", { digest: "" })];
    const { rows } = matrixOf(listing(["a", own]), nodes(4), []);
    expect(rows.map((row) => row.cells.get("a")?.differs)).toEqual([false, false, true, false]);
  });

  it("groups nodes that have the same when there are many, the largest group first", () => {
    const many = nodes(101);
    const own = many.map((node, index) => on(node.id, index < 3 ? { version: "2", digest: "sha256:b" } : {}));
    const { rows, isGrouped } = matrixOf(listing(["a", own]), many, []);
    expect(isGrouped).toBe(true);
    expect(rows.map((row) => row.nodes.length)).toEqual([98, 3]);
    expect(rows[1]?.cells.get("a")).toMatchObject({ version: "2", differs: true });
  });

  it("counts the nodes of a group that are not as asked, and keeps them apart from those that are", () => {
    const many = nodes(5);
    const drift = ["n1", "n3"].map((node_id) => ({ node_id, backend: "a" }));
    const { rows } = matrixOf(listing(["a", many.map((node) => on(node.id))]), many, drift, 2);
    expect(rows.map((row) => [row.nodes.length, row.cells.get("a")?.drifted])).toEqual([
      [3, 0],
      [2, 2],
    ]);
  });

  it("is made for ten thousand nodes without counting pairs", () => {
    const many = nodes(10_000);
    const items = Array.from({ length: 8 }, (_, index): [string, Schema<"NodeBackendView">[]] => [
      `b${index}`,
      many.map((node) => on(node.id)),
    ]);
    const began = performance.now();
    expect(matrixOf(listing(...items), many, []).rows).toHaveLength(1);
    expect(performance.now() - began).toBeLessThan(2_000);
  });

  it("finds rows by a part of a name or by status", () => {
    const { rows } = matrixOf(listing(), nodes(12), []);
    expect(findRows(rows, "node-1").map((row) => row.key)).toEqual(["n1", "n10", "n11"]);
    expect(findRows(rows, "healthy")).toHaveLength(12);
  });

  it("names a few nodes of a group and counts the rest", () => {
    expect(namesText(nodes(2))).toBe("node-0, node-1");
    expect(namesText(nodes(40))).toBe("node-0, node-1 and 38 more");
  });
});
