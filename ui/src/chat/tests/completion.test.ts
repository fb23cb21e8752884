import { describe, expect, test } from "vitest";

import { readPiece, readRefusal } from "../completion";

describe("a piece of an answer", () => {
  test("has text, model and end", () => {
    const data = '{"model":"smollm2","choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}';
    expect(readPiece(data)).toMatchObject({ text: "Hi", model: "smollm2", finish: "stop", usage: null, error: "" });
  });

  test("may be thought before it is said", () => {
    expect(readPiece('{"choices":[{"delta":{"reasoning_content":"hm"}}]}')?.reasoning).toBe("hm");
    expect(readPiece('{"choices":[{"delta":{"reasoning":"hm","content":null}}]}')).toMatchObject({
      reasoning: "hm",
      text: "",
    });
  });

  test("at the end only counts", () => {
    const piece = readPiece('{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}}');
    expect(piece).toMatchObject({ text: "", usage: { promptTokens: 5, completionTokens: 7 } });
  });

  test("may be an error", () => {
    expect(readPiece('{"error":{"message":"out of memory"}}')?.error).toBe("out of memory");
    expect(readPiece('{"error":"gone"}')?.error).toBe("gone");
    expect(readPiece('{"error":{}}')?.error).toContain("did not say which");
  });

  test.each(["", "nonsense", "[]", "null", "7", '{"choices":7}', '{"choices":[null]}', '{"choices":[{"delta":[]}]}'])(
    "from %j breaks nothing",
    (data) => {
      expect(readPiece(data)?.text ?? "").toBe("");
    },
  );
});

describe("a refusal", () => {
  test("tells code, sentence and load", () => {
    const body =
      '{"error":{"message":"model m is staging","code":"model_loading"},"loading":{"state":"staging"},"request_id":"r1"}';
    expect(readRefusal(503, body)).toEqual({
      message: "model m is staging",
      code: "model_loading",
      loading: { state: "staging" },
      requestId: "r1",
    });
  });

  test("without a sentence gets one", () => {
    expect(readRefusal(502, "<html>").message).toContain("502");
    expect(readRefusal(401, '{"error":"no key"}').message).toBe("no key");
  });
});
