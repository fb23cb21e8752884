import { expect, test } from "vitest";

import { firstTokenSeconds, speedText, startedAt, tokensPerSecond, withPiece } from "../answer-speed";

test("speed is told from the first token on, and exactly once the engine has counted", () => {
  let times = startedAt(1000);
  expect(speedText(times)).toBe("");
  times = withPiece(times, true, null, 1400);
  expect(firstTokenSeconds(times)).toBeCloseTo(0.4);
  expect(tokensPerSecond(times)).toBeNull();
  times = withPiece(times, true, null, 1900);
  times = withPiece(times, true, null, 2400);
  expect(speedText(times)).toBe("0.40 s to first token · 2.0 tokens/s · about 3 tokens");
  times = withPiece(times, false, { promptTokens: 4, completionTokens: 21 }, 2500);
  expect(speedText(times)).toBe("0.40 s to first token · 20.0 tokens/s · 21 tokens");
});

test("a load that was waited for is told apart from the first token", () => {
  const times = withPiece(startedAt(9000, 8000), true, null, 9300);
  expect(speedText(times)).toBe("8.0 s waiting for the load · 0.30 s to first token · about 1 token");
});
