import { describe, expect, it } from "vitest";

import { auditPath, changesOf, detailsOf, isMeant, joined, type RecordEntry, subjectOf, textOf } from "../audit-rows";

const entry = (data: Record<string, unknown>, more: Partial<RecordEntry> = {}): RecordEntry => ({
  sequence: 1,
  kind: "node.status",
  at: "2026-01-01T00:00:00Z",
  actor: "admin",
  node_id: null,
  data,
  ...more,
});

describe("before → after", () => {
  it("is one value, or the fields that differ", () => {
    expect(changesOf(entry({ before: null, after: "healthy" }))).toEqual([
      { field: "", before: "–", after: "healthy" },
    ]);
    expect(
      changesOf(entry({ before: { role: "viewer", disabled: false }, after: { role: "admin", disabled: false } })),
    ).toEqual([{ field: "role", before: "viewer", after: "admin" }]);
  });

  it("shows fields that came or went", () => {
    expect(changesOf(entry({ before: { zone: "a" }, after: {} }))).toEqual([
      { field: "zone", before: "a", after: "–" },
    ]);
    expect(changesOf(entry({ after: { zone: "a" } }))).toEqual([{ field: "zone", before: "–", after: "a" }]);
    expect(changesOf(entry({ uses: 1 }))).toEqual([]);
  });
});

describe("an entry of the record", () => {
  it("names what it is about and says the rest without what says nothing", () => {
    const made = entry({ id: "2cc", uses: 1, labels: {}, approve: false, revoked_keys: [], note: "" });
    expect(subjectOf(made)).toBe("2cc");
    expect(detailsOf(made)).toEqual([
      ["uses", "1"],
      ["approve", "no"],
    ]);
  });

  it("never shows objects as [object Object]", () => {
    expect(textOf({ a: 1, b: ["x", { c: null }] })).toBe("a=1 b=x, c=–");
  });

  it("is asked for with the filters that are set", () => {
    const query = { actor: "ann", kind: "", node: "", text: "a b" };
    expect(auditPath(query, 50, 17)).toBe("/api/v1/events?actor=ann&text=a+b&before=17&limit=50");
  });

  it("is shown once, the newest first, however pages overlap", () => {
    const page = (...numbers: number[]) => numbers.map((sequence) => entry({}, { sequence }));
    expect(joined(page(5, 4), page(4, 3), page(6)).map((each) => each.sequence)).toEqual([6, 5, 4, 3]);
  });

  it("that arrives live is held against the same filters", () => {
    const all = { actor: "", kind: "", node: "", text: "" };
    const status = entry({ name: "gpu-1", why: "silent" }, { node_id: "n1" });
    expect(isMeant(status, all)).toBe(true);
    expect(isMeant(status, { ...all, kind: "node" })).toBe(true);
    expect(isMeant(status, { ...all, kind: "node.status" })).toBe(true);
    expect(isMeant(status, { ...all, kind: "key" })).toBe(false);
    expect(isMeant(status, { ...all, actor: "ADM" })).toBe(true);
    expect(isMeant(status, { ...all, node: "n1" })).toBe(true);
    expect(isMeant(status, { ...all, text: "SILENT" })).toBe(true);
    expect(isMeant(status, { ...all, text: "loud" })).toBe(false);
  });
});
