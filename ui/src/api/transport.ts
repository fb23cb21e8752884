/** How every request leaves the page: with the proof against forged requests, and through the end of a session.
 *
 * When a session ends in the middle of an act, the request waits until somebody has signed in again, and is then sent
 * as it was: nothing that was typed or chosen is lost.
 */

import { Unreachable } from "./errors";

const CSRF_HEADER = "X-Corral-CSRF";
const SESSION_PATH = "/api/v1/session";
const READING = new Set(["GET", "HEAD"]);

/** Every gateway hears of a new session within two seconds; until then, one that does not know it refuses it. */
const NEWS_MILLISECONDS = 4000;
const AGAIN_MILLISECONDS = 250;
const SIGNED_IN_KEY = "corral-signed-in-at";

let csrf = "";
let signInAgain: () => Promise<void> = () => Promise.reject(new Error("nobody can sign in yet"));
let renewCsrf: () => Promise<void> = () => Promise.resolve();

/** Somebody has just signed in, in this tab. */
export function noteSignIn(): void {
  sessionStorage.setItem(SIGNED_IN_KEY, String(Date.now()));
}

/** Whether a refusal may only mean that a gateway has not heard of the session yet. */
export function isSessionNew(): boolean {
  return Date.now() - Number(sessionStorage.getItem(SIGNED_IN_KEY) ?? 0) < NEWS_MILLISECONDS;
}

/** The proof of the present session. */
export function setCsrf(token: string): void {
  csrf = token;
}

/** What to do when a session is over: resolves when somebody has signed in again. */
export function onSessionEnd(handlers: { signInAgain: () => Promise<void>; renewCsrf: () => Promise<void> }): void {
  signInAgain = handlers.signInAgain;
  renewCsrf = handlers.renewCsrf;
}

export async function send(request: Request): Promise<Response> {
  const isOfSession = new URL(request.url).pathname === SESSION_PATH;
  if (isOfSession && request.method === "POST") return sendOnce(request);
  const response = await sendToGateway(request);
  if (isOfSession) return response;
  if (response.status === 401) {
    await signInAgain();
    return sendToGateway(request);
  }
  if (response.status === 403 && (await codeOf(response)) === "csrf") {
    await renewCsrf();
    return sendToGateway(request);
  }
  return response;
}

/** Asks again for a moment where the gateway has not heard of the session yet. */
async function sendToGateway(request: Request): Promise<Response> {
  for (;;) {
    const response = await sendOnce(request.clone());
    if (response.status !== 401 || !isSessionNew()) return response;
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MILLISECONDS));
  }
}

async function sendOnce(request: Request): Promise<Response> {
  if (!READING.has(request.method) && csrf !== "") request.headers.set(CSRF_HEADER, csrf);
  try {
    return await fetch(request);
  } catch (error) {
    if (error instanceof TypeError) throw new Unreachable();
    throw error;
  }
}

async function codeOf(response: Response): Promise<string> {
  try {
    const body: unknown = await response.clone().json();
    return (body as { error?: { code?: string } }).error?.code ?? "";
  } catch {
    return "";
  }
}
