import { describe, expect, test, vi } from "vitest";

import type { Gateway } from "../asking";
import { openAnswer } from "../talk";
import { TalkStorage } from "../talk-storage";
import { Talks } from "../talks";
import { MemoryStorage } from "./memory-storage";

/** An answer that the test writes itself, part by part. */
class WrittenAnswer {
  private controller: ReadableStreamDefaultController<Uint8Array> | null = null;
  readonly response: Response;

  constructor(headers: Record<string, string> = {}) {
    const stream = new ReadableStream<Uint8Array>({
      start: (controller) => {
        this.controller = controller;
      },
    });
    this.response = new Response(stream, { status: 200, headers });
  }

  say(text: string, more: object = {}): void {
    this.write(`data: ${JSON.stringify({ model: "smollm2", choices: [{ delta: { content: text }, ...more }] })}\n\n`);
  }

  write(text: string): void {
    this.controller?.enqueue(new TextEncoder().encode(text));
  }

  end(): void {
    this.controller?.close();
  }
}

function refusal(status: number, body: object, headers: Record<string, string> = {}): Response {
  return new Response(JSON.stringify(body), { status, headers });
}

function world(...answers: (Response | (() => never))[]) {
  const storage = new MemoryStorage();
  const requests: { body: Record<string, unknown>; key: string; signal: AbortSignal }[] = [];
  let id = 0;
  let renewals = 0;
  const gateway: Gateway = {
    fetch: async (_path, init) => {
      const key = new Headers(init.headers).get("Authorization") ?? "";
      requests.push({ body: JSON.parse(String(init.body)), key, signal: init.signal as AbortSignal });
      const answer = answers.shift();
      if (typeof answer === "function") return answer();
      if (answer === undefined) throw new Error("no more answers");
      return answer;
    },
    key: async () => `k${renewals}`,
    renewKey: async () => {
      renewals += 1;
      return `k${renewals}`;
    },
    sleep: async () => {},
  };
  const talks = new Talks({
    gateway,
    storage: new TalkStorage(storage, "ada"),
    now: () => Date.now(),
    newId: () => {
      id += 1;
      return `id${id}`;
    },
  });
  return { talks, requests, storage };
}

const PLAIN = { system: "", temperature: null };
const last = (talks: Talks, id: string) => talks.get(id)?.exchanges.at(-1)?.answer;

describe("an answer", () => {
  test("arrives in parts and is kept at its end", async () => {
    const written = new WrittenAnswer({ "X-LocalAI-Node": "n1" });
    const { talks, storage, requests } = world(written.response);
    const id = talks.begin("smollm2", { system: "Be short.", temperature: 0.5 }, "Hi");
    written.say("Hel");
    await vi.waitFor(() => expect(last(talks, id)).toMatchObject({ text: "Hel", state: "streaming", nodeId: "n1" }));
    written.say("lo", { finish_reason: "stop" });
    written.write('data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\ndata: [DONE]\n\n');
    await vi.waitFor(() => expect(last(talks, id)?.state).toBe("done"));
    expect(last(talks, id)).toMatchObject({ text: "Hello", model: "smollm2" });
    expect(last(talks, id)?.times?.usage).toEqual({ promptTokens: 3, completionTokens: 2 });
    expect(new TalkStorage(storage, "ada").all()[0]?.exchanges[0]?.answer.text).toBe("Hello");
    expect(requests[0]?.body).toMatchObject({ model: "smollm2", stream: true, temperature: 0.5 });
  });

  test("goes on while nobody looks", async () => {
    const written = new WrittenAnswer();
    const { talks } = world(written.response);
    const stopLooking = talks.subscribe(() => {});
    const id = talks.begin("m", PLAIN, "Hi");
    stopLooking();
    written.say("all of it", { finish_reason: "stop" });
    written.write("data: [DONE]\n\n");
    await vi.waitFor(() => expect(last(talks, id)).toMatchObject({ state: "done", text: "all of it" }));
  });

  test("waits for the load, tells how far it is, and is asked for by itself", async () => {
    const written = new WrittenAnswer();
    const loading = {
      error: { code: "model_loading", message: "is staging" },
      loading: { state: "staging", bytes_sent: 5, total_bytes: 10 },
    };
    const { talks, requests } = world(refusal(503, loading, { "Retry-After": "2" }), written.response);
    const seen: (string | undefined)[] = [];
    talks.subscribe(() => seen.push(talks.all()[0]?.exchanges[0]?.answer.state));
    const id = talks.begin("m", PLAIN, "Hi");
    written.say("ready", { finish_reason: "stop" });
    written.end();
    await vi.waitFor(() => expect(last(talks, id)).toMatchObject({ state: "done", text: "ready" }));
    expect(seen).toContain("loading");
    expect(requests).toHaveLength(2);
  });

  test("of a model that cannot be loaded says why", async () => {
    const body = {
      error: { code: "model_load_failed", message: "m cannot be loaded" },
      loading: { state: "failed", engine_lines: ["boom"] },
    };
    const { talks } = world(refusal(503, body));
    const id = talks.begin("m", PLAIN, "Hi");
    await vi.waitFor(() => expect(last(talks, id)?.state).toBe("failed"));
    expect(last(talks, id)).toMatchObject({
      problem: "m cannot be loaded",
      news: { isFailed: true, engineLines: ["boom"] },
    });
  });

  test("is asked for once more with a new key, and only once", async () => {
    const { talks, requests } = world(refusal(401, { error: "no" }), refusal(401, { error: "still no" }));
    const id = talks.begin("m", PLAIN, "Hi");
    await vi.waitFor(() => expect(last(talks, id)).toMatchObject({ state: "failed", problem: "still no" }));
    expect(requests.map(({ key }) => key)).toEqual(["Bearer k0", "Bearer k1"]);
  });

  test("that breaks off keeps what came of it", async () => {
    const written = new WrittenAnswer();
    const { talks } = world(written.response);
    const id = talks.begin("m", PLAIN, "Hi");
    written.say("half");
    written.end();
    await vi.waitFor(() => expect(last(talks, id)?.state).toBe("failed"));
    expect(last(talks, id)).toMatchObject({ text: "half", problem: expect.stringContaining("broke off") });
  });

  test("that ends in an error of the engine says so", async () => {
    const written = new WrittenAnswer();
    const { talks } = world(written.response);
    const id = talks.begin("m", PLAIN, "Hi");
    written.write('data: {"error":{"message":"out of memory"}}\n\n');
    await vi.waitFor(() => expect(last(talks, id)).toMatchObject({ state: "failed", problem: "out of memory" }));
  });

  test("of a frontend that is away fails with a sentence", async () => {
    const { talks } = world(() => {
      throw new TypeError("Failed to fetch");
    });
    const id = talks.begin("m", PLAIN, "Hi");
    await vi.waitFor(() => expect(last(talks, id)?.problem).toContain("does not answer"));
  });

  test("can be stopped: the request is aborted and what came stays", async () => {
    const written = new WrittenAnswer();
    const { talks, requests } = world(written.response);
    const id = talks.begin("m", PLAIN, "Hi");
    written.say("half");
    await vi.waitFor(() => expect(last(talks, id)?.text).toBe("half"));
    talks.stop(id);
    expect(last(talks, id)).toMatchObject({ state: "stopped", text: "half" });
    expect(requests[0]?.signal.aborted).toBe(true);
    written.say("late");
    await Promise.resolve();
    expect(last(talks, id)?.text).toBe("half");
  });
});

describe("talks", () => {
  test("take one question at a time, and none that is empty", async () => {
    const written = new WrittenAnswer();
    const { talks, requests } = world(written.response);
    const id = talks.begin("m", PLAIN, "Hi");
    talks.ask(id, "impatient");
    talks.ask(id, "  ");
    await vi.waitFor(() => expect(requests).toHaveLength(1));
    expect(talks.get(id)?.exchanges).toHaveLength(1);
    talks.stop(id);
  });

  test("answer an edited question, without what came after it", async () => {
    const first = new WrittenAnswer();
    const second = new WrittenAnswer();
    const { talks, requests } = world(first.response, second.response);
    const id = talks.begin("m", PLAIN, "one");
    first.say("1", { finish_reason: "stop" });
    first.end();
    await vi.waitFor(() => expect(last(talks, id)?.state).toBe("done"));
    const exchange = talks.get(id)?.exchanges[0];
    talks.askAgain(id, exchange?.id ?? "", "uno");
    await vi.waitFor(() => expect(requests).toHaveLength(2));
    expect(requests[1]?.body["messages"]).toEqual([{ role: "user", content: "uno" }]);
    talks.close();
    const talk = talks.get(id);
    expect(talk && openAnswer(talk)).toBeNull();
  });

  test("are forgotten, in the browser too", () => {
    const { talks, storage } = world(new WrittenAnswer().response);
    const id = talks.begin("m", PLAIN, "one");
    talks.close();
    expect(storage.length).toBe(1);
    talks.remove(id);
    expect(storage.length).toBe(0);
    talks.clear();
    expect(talks.all()).toEqual([]);
  });

  test("of another tab are taken over, unless they are being answered here", () => {
    const { talks } = world(new WrittenAnswer().response);
    const id = talks.begin("m", PLAIN, "one");
    talks.takeOver(id, () => undefined);
    expect(talks.get(id)).toBeDefined();
    talks.takeOver("other", () => ({ id: "other", model: "m", ...PLAIN, exchanges: [], changedAt: 1 }));
    expect(talks.all().map((talk) => talk.id)).toContain("other");
    talks.close();
  });
});
