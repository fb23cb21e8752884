import { describe, expect, it } from "vitest";

import { apply, EMPTY, type Frame, newerOf, readFrame, type TopicState, withoutDraft } from "../merge";

function snapshot(items: Frame["items"], more: Partial<Frame> = {}): Frame {
  return { kind: "snapshot", topic: "nodes", items, gone: [], isFirst: true, isWhole: true, isMissing: false, ...more };
}

function change(items: Frame["items"], more: Partial<Frame> = {}): Frame {
  return { kind: "change", topic: "nodes", items, gone: [], isFirst: false, isWhole: false, isMissing: false, ...more };
}

function stateAfter(...frames: Frame[]): TopicState {
  return frames.reduce(apply, EMPTY);
}

describe("a topic", () => {
  it("is whole after its snapshot, also when that is empty", () => {
    expect(stateAfter(snapshot({})).isWhole).toBe(true);
    expect(EMPTY.isWhole).toBe(false);
  });

  it("keeps what is shown until the last frame of a snapshot has come", () => {
    const before = stateAfter(snapshot({ a: { name: "a" }, b: { name: "b" } }));
    const halfway = apply(before, snapshot({ a: { name: "a" } }, { isWhole: false }));

    expect([...halfway.items.keys()]).toEqual(["a", "b"]);
    const whole = apply(halfway, snapshot({ c: { name: "c" } }, { isFirst: false }));
    expect([...whole.items.keys()]).toEqual(["a", "c"]);
  });

  it("keeps changes that come between two frames of a snapshot", () => {
    const state = stateAfter(
      snapshot({ a: { name: "a" } }, { isWhole: false }),
      change({ a: { name: "new" } }),
      snapshot({ b: { name: "b" } }, { isFirst: false }),
    );

    expect(state.items.get("a")).toEqual({ name: "new" });
  });

  it("begins a snapshot again that was cut off", () => {
    const cut = withoutDraft(stateAfter(snapshot({ gone: {} }, { isWhole: false })));
    const state = apply(cut, snapshot({ a: {} }, { isFirst: false }));

    expect([...state.items.keys()]).toEqual(["a"]);
  });

  it("drops what is gone", () => {
    expect(stateAfter(snapshot({ a: {}, b: {} }), change({}, { gone: ["a"] })).items.has("a")).toBe(false);
  });

  it("says that there is nothing of an id, until there is", () => {
    const missing = stateAfter(snapshot({}, { isMissing: true }));

    expect(missing.isMissing).toBe(true);
    expect(apply(missing, change({ a: {} })).isMissing).toBe(false);
  });

  it("keeps the same objects when a snapshot says nothing new", () => {
    const before = stateAfter(snapshot({ a: { deep: { n: [1, 2] } } }));
    const again = apply(before, snapshot({ a: { deep: { n: [1, 2] } } }, {}));

    expect(again.items).toBe(before.items);
  });

  it("keeps a bounded number of events", () => {
    const many = Object.fromEntries(Array.from({ length: 700 }, (_, index) => [`e${index}`, {}]));
    const state = stateAfter(snapshot({}, { topic: "events" }), change(many, { topic: "events" }));

    expect(state.items.size).toBe(500);
    expect(state.items.has("e699")).toBe(true);
  });
});

describe("what is shown never goes back", () => {
  it("keeps a node that was heard later than another frontend says", () => {
    const shown = { heard_at: "2026-01-01T00:00:10Z", status: "healthy" };
    const arriving = { heard_at: "2026-01-01T00:00:05Z", status: "unhealthy" };

    expect(newerOf("nodes", shown, arriving)).toBe(shown);
  });

  it("keeps the bytes of the same attempt", () => {
    const shown = { status: "downloading", attempts: 1, current_bytes: 500, percentage: 50 };
    const arriving = { status: "downloading", attempts: 1, current_bytes: 400, percentage: 40, message: "new" };

    expect(newerOf("operation:x", shown, arriving)).toEqual({ ...arriving, current_bytes: 500, percentage: 50 });
  });

  it("begins at zero with another attempt, and with another file", () => {
    const shown = { status: "downloading", attempts: 1, file_name: "a", current_bytes: 500 };

    for (const other of [{ attempts: 2 }, { file_name: "b" }]) {
      const arriving = { ...shown, current_bytes: 0, ...other };
      expect(newerOf("operation:x", shown, arriving)).toBe(arriving);
    }
  });
});

describe("a frame", () => {
  it("is read with defaults for what is not said", () => {
    expect(readFrame("change", { topic: "nodes" })).toEqual(change({}, {}));
  });

  it("is none when the event is of another kind", () => {
    expect(readFrame("ready", { at: "" })).toBeNull();
    expect(readFrame("change", "text")).toBeNull();
  });
});
