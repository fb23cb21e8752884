import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { freshnessOf } from "../freshness";
import type { Frame } from "../merge";
import { BATCH_MILLISECONDS, LiveStore } from "../store";
import { pauseAfter, secondsAway } from "../stream";

function frame(kind: Frame["kind"], key: string, topic = "nodes"): Frame {
  return { kind, topic, items: { [key]: { key } }, gone: [], isFirst: true, isWhole: true, isMissing: false };
}

describe("the store", () => {
  beforeEach(() => vi.useFakeTimers());
  afterEach(() => vi.useRealTimers());

  it("tells whoever listens at most once for each batch", () => {
    const store = new LiveStore();
    const listener = vi.fn();
    store.subscribe("nodes", listener);

    for (let second = 0; second < 2; second += 1) {
      for (let step = 0; step < 100; step += 1) {
        store.take([frame("change", `n${second}-${step}`)], `h.${second * 100 + step + 1}`);
        vi.advanceTimersByTime(10);
      }
    }
    vi.advanceTimersByTime(BATCH_MILLISECONDS);

    expect(listener.mock.calls.length).toBeLessThanOrEqual(10);
    expect(store.topic("nodes").items.size).toBe(200);
    expect(store.place).toBe("h.200");
  });

  it("tells nobody when nothing changed", () => {
    const store = new LiveStore();
    store.take([frame("snapshot", "a")], "h.1");
    vi.runAllTimers();
    const listener = vi.fn();
    store.subscribe("nodes", listener);

    store.take([frame("snapshot", "a")], "other.1");
    vi.runAllTimers();

    expect(listener).not.toHaveBeenCalled();
  });

  it("keeps what nobody follows as long as its place says that it is known", () => {
    const store = new LiveStore();
    store.take([frame("snapshot", "a"), frame("snapshot", "t", "operation:x")], "h.1.nx");
    vi.runAllTimers();

    store.followOnly(["nodes"]);
    expect(store.place).toBe("h.1.nx");
    expect(store.topic("operation:x").isWhole).toBe(true);

    store.take([frame("change", "b")], "h.2.n");
    vi.runAllTimers();
    expect(store.topic("operation:x").isWhole).toBe(false);
    expect(store.topic("nodes").items.size).toBe(2);
  });

  it("goes on with what is followed again before the stream moved on", () => {
    const store = new LiveStore();
    store.take([frame("snapshot", "t", "operation:x")], "h.1.x");
    vi.runAllTimers();
    store.followOnly(["nodes"]);
    store.followOnly(["nodes", "operation:x"]);

    store.take([frame("change", "u", "operation:x")], "h.2.x");
    vi.runAllTimers();

    expect([...store.topic("operation:x").items.keys()]).toEqual(["t", "u"]);
  });

  it("forgets everything when somebody signs out", () => {
    const store = new LiveStore();
    store.take([frame("snapshot", "a")], "h.1");
    vi.runAllTimers();

    store.clear();

    expect(store.topic("nodes").isWhole).toBe(false);
    expect(store.place).toBe("");
  });
});

describe("freshness", () => {
  const lost = { state: "lost", since: 0, controlAwaySince: null } as const;

  it("is off while nothing is followed", () => {
    expect(freshnessOf({ state: "off" }, 99_000, 0)).toBe("off");
  });

  it("goes from live over late and lost to stale", () => {
    expect(freshnessOf({ state: "open" }, 5_000, 0)).toBe("live");
    expect(freshnessOf(lost, 1_000, 1_000)).toBe("live");
    expect(freshnessOf(lost, 3_000, 3_000)).toBe("late");
    expect(freshnessOf(lost, 10_000, 10_000)).toBe("lost");
    expect(freshnessOf(lost, 30_000, 30_000)).toBe("stale");
  });
});

describe("the stream", () => {
  it("is opened again within five seconds however often it failed", () => {
    expect(Math.max(...[0, 1, 2, 10].map(pauseAfter))).toBeLessThanOrEqual(3_000);
  });

  it("knows from the gateway that only control is away", () => {
    expect(secondsAway('{"status":"ready","control":{"state":"away","for_seconds":4.2}}')).toBe(4.2);
    expect(secondsAway('{"status":"ready","control":{"state":"up"}}')).toBeNull();
    expect(secondsAway("<html>")).toBeNull();
  });
});
