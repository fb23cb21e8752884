import { describe, expect, it } from "vitest";

import { append, gap, MOST_LINES, readEntry, severityOf, textOf } from "../log-lines";

describe("lines of a log", () => {
  it("are read as text, whatever is in them", () => {
    const entry = readEntry({ at: "2026-01-01T00:00:00Z", stream: "stderr", text: "<b>hi</b>", truncated: false }, 1);

    expect(entry?.text).toBe("<b>hi</b>");
    expect(readEntry({ text: 5 }, 1)).toBeNull();
    expect(readEntry("text", 1)).toBeNull();
  });

  it("say how long they are when they are cut", () => {
    const cut = readEntry({ at: "", stream: "stdout", text: "xxx", truncated: true, length: 1024 * 1024 }, 1);
    const whole = readEntry({ at: "", stream: "stdout", text: "xxx", truncated: false, length: 3 }, 1);

    expect(cut === null ? "" : textOf(cut)).toBe("xxx … (the line has 1.0 MiB)");
    expect(whole === null ? "" : textOf(whole)).toBe("xxx");
  });

  it("are as grave as they say, whatever stream they came by", () => {
    expect(severityOf("llama_model_loader: loaded meta data with 34 key-value pairs")).toBe("plain");
    expect(severityOf("error: failed to load model 'x.gguf'")).toBe("error");
    expect(severityOf("E 12:00:01 out of memory")).toBe("error");
    expect(severityOf("0.00.060.787 E llama_model_load_from_file_impl: failed to load model")).toBe("error");
    expect(severityOf("0.00.060.787 W load: control token is not marked")).toBe("warning");
    expect(severityOf("0.00.060.787 I load: vocabulary of 49152 tokens")).toBe("plain");
    expect(severityOf("[WARN] slot 0: context shift")).toBe("warning");
    expect(severityOf("warning: no usable GPU found")).toBe("warning");
    expect(severityOf("finished with 0 errors")).toBe("plain");
    expect(severityOf("terror and errorless words")).toBe("plain");
  });

  it("say where some are missing, and how many", () => {
    expect(readEntry({ gap: "too slow", lost: 7 }, 1)).toMatchObject({ isGap: true, text: "too slow (7 lines)" });
    expect(readEntry({ gap: "the worker is away", lost: null }, 1)?.text).toBe("the worker is away");
  });

  it("are kept up to a number, the newest ones", () => {
    const many = Array.from({ length: MOST_LINES + 5 }, (_, number) => gap(number, "x"));

    expect(append([], many)).toHaveLength(MOST_LINES);
    expect(append([], many).at(-1)?.number).toBe(MOST_LINES + 4);
  });
});
