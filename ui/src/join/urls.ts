/** By which addresses a new machine reaches the fleet, and what is wrong with them. Pure. */

export interface Reachable {
  readonly url: string;
  /** Why no other machine would get there, as a sentence; empty when nothing is known to be wrong. */
  readonly problem: string;
}

/** The URL for the new machine: what the frontend says of itself, or else how this browser reaches it. */
export function joinUrl(told: string, browsed: string): Reachable {
  const [own, here] = [parsed(told), parsed(browsed)];
  if (own !== null && !isLoopback(own.hostname) && !isWildcard(own.hostname))
    return { url: trimmed(told), problem: "" };
  if (here !== null && !isLoopback(here.hostname)) return { url: here.origin, problem: "" };
  if (own !== null && isWildcard(own.hostname)) {
    return { url: here?.origin ?? trimmed(told), problem: WHICH_ADDRESS };
  }
  return { url: here?.origin ?? trimmed(told), problem: LOOPBACK_ONLY };
}

const LOOPBACK_ONLY =
  "The frontend listens on loopback only, so only workers on its own machine reach it. Start it with --host 0.0.0.0" +
  " --nats-host 0.0.0.0 to let others in.";
const WHICH_ADDRESS =
  "You look at the frontend from its own machine, so its address in the network is not known here. Replace the host in" +
  " the URL.";

/** What is wrong with a URL that somebody typed; empty when it can be used. */
export function urlProblem(text: string): string {
  const url = parsed(text);
  if (url === null || (url.protocol !== "http:" && url.protocol !== "https:")) {
    return "This is not a URL such as http://10.0.0.1:8080.";
  }
  if (isWildcard(url.hostname)) return "This address means every interface: name one that the new machine can reach.";
  return "";
}

/** Where the new machine finds NATS: addresses that mean the frontend's own machine are seen from outside. */
export function natsUrls(told: readonly string[], frontend: string): readonly string[] {
  const host = parsed(frontend)?.hostname ?? "";
  return told.map((text) => {
    const match = /^(\w+:\/\/)(\[[^\]]*\]|[^:/]+)(.*)$/.exec(text);
    if (match === null || host === "") return text;
    const [, scheme, own, rest] = match;
    return own !== undefined && (isLoopback(own) || isWildcard(own)) ? `${scheme}${host}${rest}` : text;
  });
}

export function natsProblem(told: readonly string[]): string {
  if (told.length > 0) return "";
  return "This fleet does not tell machines where NATS is: set CORRAL_NATS_URL on the new machine before you join.";
}

function parsed(text: string): URL | null {
  return URL.canParse(text) ? new URL(text) : null;
}

function trimmed(url: string): string {
  return url.replace(/\/+$/, "");
}

function isLoopback(host: string): boolean {
  return host === "localhost" || host === "[::1]" || /^127\.\d+\.\d+\.\d+$/.test(host);
}

function isWildcard(host: string): boolean {
  return host === "0.0.0.0" || host === "[::]" || host === "";
}
