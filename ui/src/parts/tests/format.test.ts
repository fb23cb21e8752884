import { describe, expect, it } from "vitest";

import { age, bytes, duration, eta, firstOfNodes, percent, plural, shortDigest, shortDigests, speed } from "../format";

const NOW = Date.parse("2026-03-01T12:00:00Z");

describe("formats", () => {
  it.each([
    [0, "0 B"],
    [999, "999 B"],
    [1023, "1.0 KiB"],
    [1536, "1.5 KiB"],
    [24 * 1024 ** 3, "24.0 GiB"],
    [127.97 * 1024 ** 3, "128 GiB"],
    [null, "?"],
  ])("write %s bytes as %s", (count, text) => {
    expect(bytes(count)).toBe(text);
  });

  it("say nothing of a speed that nobody knows", () => {
    expect(speed(0)).toBe("");
    expect(speed(2048)).toBe("2.0 KiB/s");
  });

  it.each([
    [0, "0 s"],
    [59.4, "59 s"],
    [95, "1 min 35 s"],
    [3600, "1 h"],
    [90_000, "1 d 1 h"],
    [null, "?"],
  ])("write %s seconds as %s", (seconds, text) => {
    expect(duration(seconds)).toBe(text);
  });

  it("tell ages in one unit, never negative ones", () => {
    expect(age("2026-03-01T11:59:48Z", NOW)).toBe("12 s ago");
    expect(age("2026-03-01T10:30:00Z", NOW)).toBe("1 h ago");
    expect(age("2026-03-01T12:00:30Z", NOW)).toBe("now");
    expect(age("", NOW)).toBe("?");
  });

  it("never round up to a finished percentage", () => {
    expect(percent(99.9)).toBe("99 %");
  });

  it("count in words", () => {
    expect(plural(1, "node")).toBe("1 node");
    expect(plural(1200, "reply", "replies")).toBe("1,200 replies");
    expect(eta(null)).toBe("");
    expect(eta(65)).toBe("1 min 5 s left");
    expect(shortDigest(`sha256:${"ab".repeat(32)}`)).toBe("abababababab");
  });

  it("says how many nodes more, where every node says something", () => {
    expect(firstOfNodes("a has 1 GiB; b has 2 GiB; c is draining; and 9 more nodes")).toBe(
      "a has 1 GiB; 11 more nodes cannot either",
    );
    expect(firstOfNodes("a has 1 GiB; b has 2 GiB")).toBe("a has 1 GiB; b has 2 GiB");
  });

  it("cuts digests and ids inside of a sentence, and nothing else", () => {
    expect(shortDigests(`has sha256:${"ab".repeat(32)}, not ${"cd".repeat(32)}`)).toBe(
      "has sha256:abababababab…, not cdcdcdcdcdcd…",
    );
    expect(shortDigests("replica 637cc8f5-b5f1-4af1-8a71-704b90dc20ae on gpu-a-01")).toBe(
      "replica 637cc8f5… on gpu-a-01",
    );
    expect(shortDigests("vllm needs 45.8 MiB, deadbeef")).toBe("vllm needs 45.8 MiB, deadbeef");
  });
});
