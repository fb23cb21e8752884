import { describe, expect, test } from "vitest";

import type { LoadRow } from "../../live/topics";
import { againSentence, newsOfAnswer, newsOfRow, newsSentence, nothingRuns, shareOf } from "../load-news";

const MIB = 1024 ** 2;
const ROW: LoadRow = {
  id: "1",
  model: "m",
  node: "gpu-1",
  node_id: "n1",
  phase: "staging",
  since: "2026-01-01T00:00:00Z",
  steps: [
    { step: "place", seconds: 1, state: "done" },
    { step: "stage", seconds: 3, state: "running" },
  ],
  bytes: 41 * MIB,
  total_bytes: 82 * MIB,
  bytes_per_second: 12 * MIB,
  seconds_left: 4,
  message: "",
  is_permanent: false,
  retry_in_seconds: null,
  why: "asked",
  reason: "",
  engine_lines: [],
};

describe("news of a load", () => {
  test("say phase, node, bytes, speed and what is left", () => {
    const news = newsOfRow(ROW);
    expect(newsSentence(news)).toBe("Bringing files on gpu-1: 41.0 MiB of 82.0 MiB, 12.0 MiB/s, 4 s left");
    expect(shareOf(news)).toBe(50);
  });

  test("say nothing that nobody knows", () => {
    const news = newsOfAnswer({ model: "m", state: "loading" });
    expect(newsSentence(news)).toBe("Loading");
    expect(shareOf(news)).toBeNull();
    expect(news.steps).toEqual([]);
  });

  test("from a refusal have the same form", () => {
    const news = newsOfAnswer({
      state: "staging",
      step: "stage",
      step_seconds: { place: 0.2, stage: 3 },
      bytes_sent: MIB,
      total_bytes: 4 * MIB,
      eta_seconds: 9,
    });
    expect(news.steps.map(({ step, state }) => [step, state])).toEqual([
      ["place", "done"],
      ["stage", "running"],
    ]);
    expect(newsSentence(news)).toBe("Bringing files: 1.0 MiB of 4.0 MiB, 9 s left");
  });

  test("of a failure say what comes next", () => {
    expect(againSentence(newsOfAnswer({ state: "failed", is_permanent: true }))).toContain("not tried again");
    expect(againSentence(newsOfAnswer({ state: "failed", retry_in_seconds: 30 }))).toContain("in 30 s");
    expect(againSentence(newsOfAnswer({ state: "failed" }))).toBe("");
  });
});

test.each([
  [false, [], "Nothing runs for it. The first request loads it."],
  [true, [], "Nothing runs for it: it is disabled."],
  [false, [{ phase: "failed", is_permanent: true }], "Nothing runs for it: it cannot be loaded."],
  [false, [{ phase: "failed", is_permanent: false }], "Nothing runs for it. The first request loads it."],
  [false, [{ phase: "staging", is_permanent: false }], "Nothing runs for it yet."],
])("why nothing runs: disabled %j, loads %j", (isDisabled, loads, text) => {
  expect(nothingRuns(isDisabled, loads)).toBe(text);
});
