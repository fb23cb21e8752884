/** Numbers and times as people read them. The same forms as the command line prints. */

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] as const;
export const UNKNOWN = "?";

/** 1536 → "1.5 KiB". Three digits are enough to compare. */
export function bytes(count: number | null | undefined): string {
  if (count === null || count === undefined) return UNKNOWN;
  let value = count;
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || Math.abs(value) >= 99.95 ? 0 : 1;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

export function speed(bytesPerSecond: number | null | undefined): string {
  return bytesPerSecond ? `${bytes(bytesPerSecond)}/s` : "";
}

export function percent(share: number): string {
  return `${Math.floor(Math.min(100, Math.max(0, share)))} %`;
}

export function count(number: number | null | undefined): string {
  return number === null || number === undefined ? UNKNOWN : number.toLocaleString("en-US");
}

/** "1 node", "3 nodes". */
export function plural(number: number, noun: string, many = `${noun}s`): string {
  return `${count(number)} ${number === 1 ? noun : many}`;
}

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** 95 → "1 min 35 s". Two units at most: the third says nothing. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return UNKNOWN;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < MINUTE) return `${whole} s`;
  if (whole < HOUR) return pair(whole, MINUTE, "min", 1, "s");
  if (whole < DAY) return pair(whole, HOUR, "h", MINUTE, "min");
  return pair(whole, DAY, "d", HOUR, "h");
}

function pair(seconds: number, large: number, largeName: string, small: number, smallName: string): string {
  const head = Math.floor(seconds / large);
  const rest = Math.floor((seconds % large) / small);
  return rest === 0 ? `${head} ${largeName}` : `${head} ${largeName} ${rest} ${smallName}`;
}

/** How long ago, in one unit: "now", "12 s ago", "3 h ago". */
export function age(at: string | null | undefined, now: number): string {
  const seconds = secondsSince(at, now);
  if (seconds === null) return UNKNOWN;
  if (seconds < 2) return "now";
  return `${coarse(seconds)} ago`;
}

/** 5400 → "1 h". For ages, where one unit is enough. */
export function coarse(seconds: number): string {
  if (seconds < MINUTE) return `${Math.floor(seconds)} s`;
  if (seconds < HOUR) return `${Math.floor(seconds / MINUTE)} min`;
  if (seconds < DAY) return `${Math.floor(seconds / HOUR)} h`;
  return `${Math.floor(seconds / DAY)} d`;
}

export function secondsSince(at: string | null | undefined, now: number): number | null {
  const then = Date.parse(at ?? "");
  return Number.isNaN(then) ? null : Math.max(0, (now - then) / 1000);
}

/** What is left: "3 min left"; empty where nobody knows. */
export function eta(secondsLeft: number | null | undefined): string {
  return secondsLeft === null || secondsLeft === undefined ? "" : `${duration(secondsLeft)} left`;
}

/** A time of day in this browser's zone, with the date when it is not today. */
export function moment(at: string | null | undefined, now: number): string {
  const then = new Date(at ?? "");
  if (Number.isNaN(then.getTime())) return UNKNOWN;
  const time = then.toLocaleTimeString("en-GB");
  const isToday = then.toDateString() === new Date(now).toDateString();
  return isToday ? time : `${dayOf(then)} ${time}`;
}

function dayOf(then: Date): string {
  const two = (value: number) => String(value).padStart(2, "0");
  return `${then.getFullYear()}-${two(then.getMonth() + 1)}-${two(then.getDate())}`;
}

/** A text with its digests cut as `shortDigest` does, and its ids to what commands take. For eyes; the whole is a hint. */
export function shortDigests(text: string): string {
  return text
    .replace(/\bsha256:([0-9a-f]{12})[0-9a-f]{52}\b/g, "sha256:$1…")
    .replace(/\b([0-9a-f]{12})[0-9a-f]{28,52}\b/g, "$1…")
    .replace(/\b([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b/g, "$1…");
}

/** What every node says, as what the first says and how many say something too. Other texts stay as they are. */
export function firstOfNodes(text: string): string {
  const clauses = text.split("; ");
  const others = /^and (\d+) more nodes$/.exec(clauses.at(-1) ?? "");
  if (others === null || clauses.length < 3) return text;
  return `${clauses[0]}; ${clauses.length - 2 + Number(others[1])} more nodes cannot either`;
}

/** The beginning of a digest: enough to compare, with its algorithm left out. */
export function shortDigest(digest: string): string {
  return digest.replace(/^sha256:/, "").slice(0, 12);
}
