import { describe, expect, it } from "vitest";

import type { TargetRow } from "../../live/topics";
import { progressText, shareOf } from "../target-progress";

function target(more: object): TargetRow {
  return {
    status: "downloading",
    percentage: 0,
    current_bytes: 0,
    total_bytes: 0,
    bytes_per_second: 0,
    seconds_left: null,
    ...more,
  } as TargetRow;
}

describe("how far a node is", () => {
  it("is told on one scale: the share of the bytes that are told", () => {
    const half = target({ percentage: 24, current_bytes: 512, total_bytes: 1024 });
    expect(shareOf(half)).toBe(50);
    expect(progressText(half)).toBe("50 % · 512 B of 1.0 KiB");
  });

  it("is the server's share while nobody tells bytes", () => {
    expect(progressText(target({ percentage: 24.6 }))).toBe("24 %");
    expect(shareOf(target({ percentage: 24.6 }))).toBe(24.6);
  });

  it("does not claim to be over when only the download is", () => {
    const unpacking = target({ percentage: 60, current_bytes: 1024, total_bytes: 1024 });
    expect(progressText(unpacking)).toBe("1.0 KiB fetched");
    expect(shareOf(unpacking)).toBe(100);
  });

  it("never is more than everything", () => {
    expect(shareOf(target({ percentage: 10, current_bytes: 2000, total_bytes: 1000 }))).toBe(100);
  });

  it("tells speed and time left", () => {
    const moving = target({ current_bytes: 256, total_bytes: 1024, bytes_per_second: 64, seconds_left: 12 });
    expect(progressText(moving)).toBe("25 % · 256 B of 1.0 KiB · 64 B/s · 12 s left");
  });
});
