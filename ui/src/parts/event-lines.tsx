/** Entries of the record: when, what, who, and what differs. Everything is shown as text, whoever wrote it. */

import styles from "./event-lines.module.css";
import { Moment } from "./time";

export interface EventLine {
  readonly sequence: number;
  readonly kind: string;
  readonly at: string;
  readonly actor: string;
  readonly node_id: string | null;
  readonly data: Readonly<Record<string, unknown>>;
}

export function EventLines({ events }: { events: readonly EventLine[] }) {
  return (
    <ol className={styles.list}>
      {events.map((event) => (
        <li key={event.sequence} className={styles.line}>
          <span className={styles.when}>
            <Moment at={event.at} />
          </span>
          <span className={styles.what}>
            <strong>{event.kind}</strong> {detailOf(event.data)}
          </span>
          <span className={styles.who}>{event.actor}</span>
        </li>
      ))}
    </ol>
  );
}

/** The facts of an event in one line: `name value`, and nothing of what is empty. */
export function detailOf(data: Readonly<Record<string, unknown>>): string {
  return Object.entries(data)
    .filter(([, value]) => value !== null && value !== "" && value !== undefined)
    .map(([name, value]) => `${name} ${plain(value)}`)
    .join(" · ");
}

function plain(value: unknown): string {
  if (typeof value === "string") return value;
  if (Array.isArray(value)) return value.map(plain).join(", ");
  return JSON.stringify(value);
}
