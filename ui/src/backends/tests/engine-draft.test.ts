import { describe, expect, it } from "vitest";

import { type Engine, engineAsk, engineDraft, isEngineReady, NEW_ENGINE, orderText, switched } from "../engine-draft";

const engine: Engine = {
  id: "e",
  model: "chat",
  name: "desk",
  url: "http://10.0.0.5:8000/v1",
  remote_model: "qwen:7b",
  uses: ["chat", "completion"],
  has_key: true,
  ca: "PEM",
  health_path: "/health",
  max_concurrent: 4,
  weight: 2,
  fallback_order: 1,
  is_enabled: true,
  state: "up",
  reason: "",
  since: null,
  checked_at: null,
  in_flight: 0,
  last_used_at: null,
  created_at: "",
  created_by: "",
  changed_at: "",
  changed_by: "",
  revision: "r1",
};

describe("an engine that somebody else runs", () => {
  it("keeps what the form does not show, and its key, when it is saved", () => {
    const ask = engineAsk(engineDraft(engine), engine);
    expect(ask).toMatchObject({
      ca: "PEM",
      health_path: "/health",
      max_concurrent: 4,
      weight: 2,
      fallback_order: 1,
      remote_model: "qwen:7b",
    });
    expect(ask).not.toHaveProperty("key");
  });

  it("gets a key only when one is typed", () => {
    expect(engineAsk({ ...engineDraft(engine), key: "secret" }, engine).key).toBe("secret");
  });

  it("is switched off without any other change", () => {
    expect(switched(engine, false)).toEqual({ ...engineAsk(engineDraft(engine), engine), is_enabled: false });
  });

  it("can be sent when model, name, URL and uses are there and numbers are numbers", () => {
    const draft = { ...NEW_ENGINE, model: "m", name: "n", url: "http://x" };
    expect(isEngineReady(NEW_ENGINE)).toBe(false);
    expect(isEngineReady(draft)).toBe(true);
    expect(isEngineReady({ ...draft, weight: "two" })).toBe(false);
    expect(isEngineReady({ ...draft, uses: " " })).toBe(false);
  });

  it("says when it is asked", () => {
    expect([orderText(0), orderText(2)]).toEqual(["beside the fleet", "fallback 2"]);
  });
});
