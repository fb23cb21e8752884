/** Entries of the record: when, what, who, and what differs. Everything is shown as text, whoever wrote it. */

import { isRecord, isSame } from "../live/merge";
import styles from "./event-lines.module.css";
import { shortDigests } from "./format";
import { Moment } from "./time";

export interface EventLine {
  readonly sequence: number;
  readonly kind: string;
  readonly at: string;
  readonly actor: string;
  readonly node_id: string | null;
  readonly data: Readonly<Record<string, unknown>>;
}

interface LinesProps {
  readonly events: readonly EventLine[];
  /** The name of what all of them are about, which need not be said in every line. */
  readonly subject?: string;
}

export function EventLines({ events, subject = "" }: LinesProps) {
  return (
    <ol className={styles.list}>
      {events.map((event) => (
        <li key={event.sequence} className={styles.line}>
          <span className={styles.when}>
            <Moment at={event.at} />
          </span>
          <span className={styles.kind}>{event.kind}</span>
          <span className={styles.what} title={detailOf(event.data)}>
            {factsOf(event.data)
              .filter(([, value]) => value !== subject)
              .map(([name, value]) => (
                <span key={name} className={styles.fact}>
                  {name !== "" && <span className={styles.name}>{name}</span>} {shortDigests(value)}
                </span>
              ))}
          </span>
          <span className={styles.who}>{event.actor}</span>
        </li>
      ))}
    </ol>
  );
}

/** The facts of an event in one line: `name value`, what differs as `before → after`, nothing of what is empty. */
export function detailOf(data: Readonly<Record<string, unknown>>): string {
  return factsOf(data)
    .map(([name, value]) => `${name} ${value}`.trim())
    .join(" · ");
}

type EventFact = readonly [name: string, value: string];

function factsOf(data: Readonly<Record<string, unknown>>): EventFact[] {
  const { before, after, ...rest } = data;
  const facts = Object.entries(rest).filter(([, value]) => value !== null && value !== "" && value !== undefined);
  return [...facts.map(([name, value]): EventFact => [name, plain(value)]), ...differences(before, after)];
}

function differences(before: unknown, after: unknown): EventFact[] {
  if (before === undefined && after === undefined) return [];
  if (!isRecord(before) || !isRecord(after)) return [["", `${plain(before)} → ${plain(after)}`]];
  const names = new Set([...Object.keys(before), ...Object.keys(after)]);
  return [...names]
    .filter((name) => !isSame(before[name], after[name]))
    .map((name) => [name, `${plain(before[name])} → ${plain(after[name])}`]);
}

function plain(value: unknown): string {
  if (value === undefined || value === null || value === "") return "–";
  if (typeof value === "string") return value;
  if (Array.isArray(value)) return value.map(plain).join(", ");
  if (isRecord(value))
    return Object.entries(value)
      .map(([name, one]) => `${name} ${plain(one)}`)
      .join(", ");
  return String(value);
}
