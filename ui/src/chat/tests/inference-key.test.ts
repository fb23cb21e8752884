import { expect, test } from "vitest";

import { InferenceKeys } from "../inference-key";

function keys(lives: number) {
  let made = 0;
  const clock = { now: 0 };
  const source = async () => {
    made += 1;
    return { key: `k${made}`, expires_at: new Date(clock.now + lives).toISOString() };
  };
  return { keys: new InferenceKeys(source, () => clock.now), clock };
}

test("a key is used until a minute before its end, by all who ask", async () => {
  const { keys: held, clock } = keys(15 * 60_000);
  expect(await Promise.all([held.get(), held.get(), held.get()])).toEqual(["k1", "k1", "k1"]);
  clock.now = 13 * 60_000;
  expect(await held.get()).toBe("k1");
  clock.now = 14.5 * 60_000;
  expect(await held.get()).toBe("k2");
});

test("a refused key is replaced, a forgotten one too", async () => {
  const { keys: held } = keys(15 * 60_000);
  await held.get();
  expect(await held.renew()).toBe("k2");
  held.forget();
  expect(await held.get()).toBe("k3");
});

test("a failure is told to those who wait, and does not stay", async () => {
  let isAway = true;
  const held = new InferenceKeys(
    async () => {
      if (isAway) throw new Error("away");
      return { key: "k", expires_at: new Date(1e12).toISOString() };
    },
    () => 0,
  );
  await expect(held.get()).rejects.toThrow("away");
  isAway = false;
  expect(await held.get()).toBe("k");
});
