import { describe, expect, it } from "vitest";

import { append, gap, MOST_LINES, readEntry, textOf } from "../log-lines";

describe("lines of a log", () => {
  it("are read as text, whatever is in them", () => {
    const entry = readEntry({ at: "2026-01-01T00:00:00Z", stream: "stderr", text: "<b>hi</b>", truncated: false }, 1);

    expect(entry?.text).toBe("<b>hi</b>");
    expect(readEntry({ text: 5 }, 1)).toBeNull();
    expect(readEntry("text", 1)).toBeNull();
  });

  it("say when they are cut", () => {
    const entry = readEntry({ at: "", stream: "stdout", text: "xxx", truncated: true }, 1);

    expect(entry === null ? "" : textOf(entry)).toContain("the line is longer");
  });

  it("are kept up to a number, the newest ones", () => {
    const many = Array.from({ length: MOST_LINES + 5 }, (_, number) => gap(number, "x"));

    expect(append([], many)).toHaveLength(MOST_LINES);
    expect(append([], many).at(-1)?.number).toBe(MOST_LINES + 4);
  });
});
