/** One entry of the record. Whatever a node or person called something is shown as text, never as markup. */

import { Button } from "react-aria-components";

import { classes } from "../parts/classes";
import { shortDigests } from "../parts/format";
import { addressOf, PageLink } from "../parts/page-link";
import { Moment } from "../parts/time";
import styles from "./access.module.css";
import { changesOf, detailsOf, isAlarm, type RecordEntry, subjectOf, whyOf } from "./audit-rows";

interface AuditEntryProps {
  readonly entry: RecordEntry;
  readonly onFilter: (filter: string, value: string) => void;
}

export function AuditEntry({ entry, onFilter }: AuditEntryProps) {
  const why = whyOf(entry);
  return (
    <li className={styles.entry}>
      <span className={styles.when}>
        <Moment at={entry.at} />
      </span>
      <Button
        className={classes(styles.word, isAlarm(entry) && styles.alarm)}
        aria-label={`Only ${entry.kind}`}
        onPress={() => onFilter("kind", entry.kind)}
      >
        {entry.kind}
      </Button>
      <span className={styles.subject}>
        <Subject entry={entry} />
      </span>
      <span className={styles.quiet}>
        by{" "}
        <Button
          className={styles.word}
          aria-label={`Only by ${entry.actor}`}
          onPress={() => onFilter("actor", entry.actor)}
        >
          {entry.actor}
        </Button>
      </span>
      <span className={styles.what}>
        {changesOf(entry).map((change) => (
          <span key={change.field} className={styles.change}>
            {change.field !== "" && <span className={styles.quiet}>{change.field}: </span>}
            {change.before} <span aria-hidden="true">→</span>
            <span className="visually-hidden">became</span> <strong>{change.after}</strong>
          </span>
        ))}
        {why !== "" && <span>{why}</span>}
        {detailsOf(entry).map(([name, value]) => (
          <span key={name} className={styles.detail}>
            <span className={styles.quiet}>{name}=</span>
            <Value text={value} />
          </span>
        ))}
      </span>
    </li>
  );
}

/** Digests and ids are cut: their beginning is enough to compare. */
function Value({ text }: { text: string }) {
  const short = shortDigests(text);
  return short === text ? text : <span title={text}>{short}</span>;
}

function Subject({ entry }: { entry: RecordEntry }) {
  const subject = subjectOf(entry);
  if (entry.node_id === null || entry.node_id === undefined) return subject;
  return <PageLink href={addressOf.node(entry.node_id)}>{subject}</PageLink>;
}
