import { describe, expect, test } from "vitest";
import { newsOfAnswer } from "../../models/load-news";

import {
  asked,
  askedAgain,
  continued,
  ended,
  endNote,
  failed,
  heard,
  messagesOf,
  newTalk,
  openAnswer,
  sent,
  stopped,
  titleOf,
  withAnswer,
} from "../talk";

const piece = (text: string, more = {}) => ({
  text,
  reasoning: "",
  model: "m-1",
  finish: "",
  usage: null,
  error: "",
  ...more,
});

function answered(question: string, answer: string, talk = newTalk("t", "m", 0), id = question) {
  const open = asked(talk, question, { exchange: `e-${id}`, answer: `a-${id}` }, 1);
  const streamed = withAnswer(open, `a-${id}`, continued(piece(answer), 2), 2);
  return withAnswer(streamed, `a-${id}`, ended, 3);
}

describe("a talk", () => {
  test("sends all that was said, and the system prompt first", () => {
    const talk = { ...answered("one", "1"), system: "Be short." };
    const next = asked(talk, "two", { exchange: "e2", answer: "a2" }, 4);
    expect(messagesOf(next)).toEqual([
      { role: "system", content: "Be short." },
      { role: "user", content: "one" },
      { role: "assistant", content: "1" },
      { role: "user", content: "two" },
    ]);
  });

  test("leaves out questions that got no answer", () => {
    const open = asked(newTalk("t", "m", 0), "lost", { exchange: "e1", answer: "a1" }, 1);
    const talk = withAnswer(open, "a1", failed("gone"), 2);
    const next = asked(talk, "again", { exchange: "e2", answer: "a2" }, 3);
    expect(messagesOf(next)).toEqual([{ role: "user", content: "again" }]);
  });

  test("goes on from an edited question, without what came after it", () => {
    const talk = answered("two", "2", answered("one", "1"), "two");
    const edited = askedAgain(talk, "e-one", "uno", "a9", 9);
    expect(edited.exchanges.map(({ question }) => question)).toEqual(["uno"]);
    expect(openAnswer(edited)?.id).toBe("a9");
    expect(askedAgain(talk, "nobody", "x", "a9", 9)).toBe(talk);
  });

  test("is not changed by a stream that was stopped or left behind", () => {
    const open = asked(newTalk("t", "m", 0), "one", { exchange: "e1", answer: "a1" }, 1);
    const halted = withAnswer(open, "a1", stopped, 2);
    expect(withAnswer(halted, "a1", continued(piece("late"), 3), 3)).toBe(halted);
    expect(withAnswer(halted, "other", ended, 3)).toBe(halted);
  });

  test("collects what an answer says of itself", () => {
    const open = asked(newTalk("t", "m", 0), "one", { exchange: "e1", answer: "a1" }, 1);
    const times = withAnswer(open, "a1", sent(100, 0), 1);
    const first = withAnswer(times, "a1", continued(piece("Hel"), 200), 2);
    const last = withAnswer(first, "a1", continued(piece("lo", { finish: "length" }), 300), 3);
    const answer = withAnswer(last, "a1", ended, 4).exchanges[0]?.answer;
    expect(answer).toMatchObject({ text: "Hello", model: "m-1", finish: "length", state: "done" });
    expect(answer?.times).toMatchObject({ sentAt: 100, firstAt: 200, lastAt: 300, pieces: 2 });
    expect(answer && endNote(answer)).toContain("most tokens");
  });

  test("counts the time to the first token from the end of a load that was waited for", () => {
    const news = newsOfAnswer({ state: "staging" });
    const open = asked(newTalk("t", "m", 0), "one", { exchange: "e1", answer: "a1" }, 1);
    const steps = [sent(1000, 0), heard(null, 1500), heard(news, 2000), heard(news, 3000), heard(null, 9000)];
    const waiting = steps.reduce((talk, step) => withAnswer(talk, "a1", step, 1), open);
    expect(openAnswer(waiting)).toMatchObject({
      state: "waiting",
      news: null,
      times: { sentAt: 9000, loadedFor: 8000 },
    });
    const loading = withAnswer(open, "a1", heard(news, 2000), 1);
    expect(withAnswer(loading, "a1", heard(news, 2500), 2), "the same news change nothing").toBe(loading);
    const streaming = withAnswer(waiting, "a1", continued(piece("x"), 9400), 1);
    expect(withAnswer(streaming, "a1", heard(news, 9500), 1).exchanges[0]?.answer.state).toBe("streaming");
  });

  test("is called after its first question", () => {
    expect(titleOf(newTalk("t", "m", 0))).toBe("New talk");
    expect(titleOf(answered("What is\nthis?", "x"))).toBe("What is");
    expect(titleOf(answered("a".repeat(100), "x"))).toHaveLength(60);
  });
});
