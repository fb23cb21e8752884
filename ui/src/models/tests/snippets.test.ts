import { describe, expect, test } from "vitest";

import { LANGUAGES, shell, snippet, USE_NAMES, type Use, usesOf } from "../snippets";

const ORIGIN = "http://fleet.example:8080";
const USES = Object.keys(USE_NAMES) as Use[];

describe("snippets", () => {
  test.each(USES)("of %s name the model, the address and no key", (use) => {
    for (const { language } of LANGUAGES) {
      const code = snippet({ origin: ORIGIN, model: "smollm2", use }, language);
      expect(code).toContain(ORIGIN);
      expect(code).toContain("smollm2");
      expect(code).toContain("MY_APP_KEY");
    }
  });

  test("keep a hostile name inside its quotes", () => {
    const model = `a'b"c\\d$(rm -rf /)\n`;
    const asked = { origin: ORIGIN, model, use: "chat" as const };
    expect(snippet(asked, "curl")).toContain(
      shell(JSON.stringify({ model, messages: [{ role: "user", content: "Hello!" }] })),
    );
    expect(snippet(asked, "python")).toContain(`model=${JSON.stringify(model)}`);
    expect(snippet(asked, "javascript")).toContain(`model: ${JSON.stringify(model)}`);
  });

  test("a quote in a shell word ends and begins it", () => {
    expect(shell("it's")).toBe("'it'\\''s'");
  });
});

test("uses come from flags, in one order; a model without flags is asked as a chat", () => {
  expect(usesOf(["FLAG_EMBEDDINGS", "FLAG_CHAT", "FLAG_VIDEO"])).toEqual(["chat", "embeddings"]);
  expect(usesOf(["FLAG_TTS"])).toEqual(["speech"]);
  expect(usesOf([])).toEqual(["chat"]);
});
