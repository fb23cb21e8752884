import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { noteSignIn, onSessionEnd, send, setCsrf } from "../transport";

const ORIGIN = "http://corral.test";

function answers(...statuses: number[]) {
  const mock = vi.fn(
    async (_request: Request) => new Response(bodyFor(statuses[0] ?? 200), { status: statuses.shift() ?? 200 }),
  );
  vi.stubGlobal("fetch", mock);
  return mock;
}

function bodyFor(status: number): string {
  return status === 403 ? '{"error":{"code":"csrf"}}' : "{}";
}

function act(): Request {
  return new Request(`${ORIGIN}/api/v1/operations`, { method: "POST", body: '{"verb":"install"}' });
}

describe("a request", () => {
  const signInAgain = vi.fn(async () => setCsrf("second"));
  const renewCsrf = vi.fn(async () => setCsrf("second"));

  beforeEach(() => {
    sessionStorage.clear();
    vi.clearAllMocks();
    setCsrf("first");
    onSessionEnd({ signInAgain, renewCsrf });
  });
  afterEach(() => {
    vi.useRealTimers();
    vi.unstubAllGlobals();
  });

  it("that changes something carries the proof against forged ones", async () => {
    const fetched = answers(202);
    await send(act());

    expect(fetched.mock.calls[0]?.[0].headers.get("X-Corral-CSRF")).toBe("first");
  });

  it("goes on as it was after somebody has signed in again", async () => {
    const fetched = answers(401, 202);
    const response = await send(act());

    expect(response.status).toBe(202);
    expect(signInAgain).toHaveBeenCalledOnce();
    const [again] = fetched.mock.calls[1] ?? [];
    expect(await again?.text()).toBe('{"verb":"install"}');
    expect(again?.headers.get("X-Corral-CSRF")).toBe("second");
  });

  it("gets a new proof when the old one is refused", async () => {
    answers(403, 202);

    expect((await send(act())).status).toBe(202);
    expect(renewCsrf).toHaveBeenCalledOnce();
  });

  it("waits for a gateway that has not heard of the session yet", async () => {
    vi.useFakeTimers();
    noteSignIn();
    const fetched = answers(401, 401, 202);
    const sent = send(act());
    await vi.advanceTimersByTimeAsync(1000);

    expect((await sent).status).toBe(202);
    expect(fetched).toHaveBeenCalledTimes(3);
    expect(signInAgain).not.toHaveBeenCalled();
  });

  it("with a wrong key is refused at once", async () => {
    noteSignIn();
    const fetched = answers(401);
    const response = await send(new Request(`${ORIGIN}/api/v1/session`, { method: "POST", body: "{}" }));

    expect(response.status).toBe(401);
    expect(fetched).toHaveBeenCalledOnce();
  });
});
