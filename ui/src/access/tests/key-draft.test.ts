import { describe, expect, it } from "vitest";

import { type KeyView, keyAsk, keyCommand, NEW_KEY, scopesText, shownKeys, unconfirmedText } from "../key-draft";

const key = (state: string, session = ""): KeyView => ({
  id: "k",
  name: "n",
  scopes: ["inference"],
  created_at: "",
  created_by: "",
  expires_at: null,
  revoked_at: null,
  state,
  user: "",
  models: null,
  session,
  last_used_at: null,
});

describe("a key", () => {
  it("is limited to models only where it asks models", () => {
    const draft = { ...NEW_KEY, name: " ci ", models: "chat, small" };
    expect(keyAsk(draft)).toEqual({
      name: "ci",
      scopes: ["inference"],
      expires_in: "90d",
      user: "",
      models: ["chat", "small"],
    });
    expect(keyAsk({ ...draft, scope: "admin" }).models).toEqual([]);
  });

  it("is the command that makes the same", () => {
    expect(keyCommand({ ...NEW_KEY, name: "ci", models: "chat" })).toBe(
      "corral keys create ci --scope inference --expires 90d --model chat --service",
    );
    expect(keyCommand({ ...NEW_KEY, name: "ci", expires: "", user: "ann" })).toBe(
      "corral keys create ci --scope inference --user ann",
    );
  });

  it("says what it opens", () => {
    expect(scopesText({ scopes: ["inference"], models: ["chat"] })).toBe("inference of chat");
    expect(scopesText({ scopes: ["admin"], models: null })).toBe("admin");
  });

  it("is shown while it works; those of the page's sessions only among all", () => {
    const keys = [key("active"), key("revoked"), key("active", "s1")];
    expect(shownKeys(keys, false)).toHaveLength(1);
    expect(shownKeys(keys, true)).toHaveLength(3);
  });

  it("names gateways that may not know yet", () => {
    expect(unconfirmedText([], "x")).toBe("");
    expect(unconfirmedText(["g1"], "may still take it")).toBe(
      "1 gateway did not answer in time and may still take it: g1.",
    );
  });
});
