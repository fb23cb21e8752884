import { describe, expect, test } from "vitest";

import { asked, newTalk } from "../talk";
import { MOST_TALKS, readTalk, TalkStorage } from "../talk-storage";
import { MemoryStorage } from "./memory-storage";

describe("talks", () => {
  test("are kept for one person only", () => {
    const storage = new MemoryStorage();
    new TalkStorage(storage, "ada").keep(newTalk("t1", "m", 5));
    expect(new TalkStorage(storage, "ada").all().map(({ id }) => id)).toEqual(["t1"]);
    expect(new TalkStorage(storage, "ada.l").all()).toEqual([]);
    expect(new TalkStorage(storage, "bob").all()).toEqual([]);
    new TalkStorage(storage, "bob").clear();
    expect(storage.length).toBe(1);
    new TalkStorage(storage, "ada").clear();
    expect(storage.length).toBe(0);
  });

  test("that were being answered when the page closed are stopped", () => {
    const storage = new TalkStorage(new MemoryStorage(), "ada");
    storage.keep(asked(newTalk("t1", "m", 0), "hi", { exchange: "e", answer: "a" }, 1));
    expect(storage.all()[0]?.exchanges[0]?.answer.state).toBe("stopped");
  });

  test("make way, the oldest first, when there are too many", () => {
    const storage = new TalkStorage(new MemoryStorage(), "ada");
    for (let number = 0; number < MOST_TALKS + 5; number += 1) storage.keep(newTalk(`t${number}`, "m", number));
    const kept = storage.all();
    expect(kept).toHaveLength(MOST_TALKS);
    expect(kept[0]?.id).toBe(`t${MOST_TALKS + 4}`);
  });

  test("make way when the browser has no more room, and one that is too large is refused", () => {
    const storage = new TalkStorage(new MemoryStorage(1000), "ada");
    for (let number = 0; number < 20; number += 1) expect(storage.keep(newTalk(`t${number}`, "m", number))).toBe(true);
    expect(storage.all()[0]?.id).toBe("t19");
    expect(storage.keep({ ...newTalk("huge", "m", 99), system: "x".repeat(2000) })).toBe(false);
  });

  test.each([null, "", "x", "[]", "{}", '{"id":1}', '{"id":"a","model":"m","exchanges":7}'])(
    "from %j are none",
    (text) => {
      expect(readTalk(text)).toBeNull();
    },
  );

  test("with parts that make no sense keep the others", () => {
    const talk = readTalk(
      '{"id":"a","model":"m","exchanges":[null,{"id":"e","question":"q","answer":{"id":"x","text":5}}]}',
    );
    expect(talk?.exchanges).toHaveLength(1);
    expect(talk?.exchanges[0]?.answer).toMatchObject({ text: "", state: "stopped", times: null });
  });
});
