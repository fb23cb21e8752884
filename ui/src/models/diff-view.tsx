/** How two configurations differ: added, removed and the lines around them. */

import { classes } from "../parts/classes";
import { type DiffLine, diffHunks } from "./diff";
import styles from "./diff-view.module.css";

const SIGNS = { same: " ", added: "+", removed: "−" } as const;
const WORDS = { same: "", added: "added: ", removed: "removed: " } as const;

export function DiffView({ before, after, label }: { before: string; after: string; label: string }) {
  const hunks = diffHunks(before, after);
  if (hunks.length === 0) return <p className={styles.none}>The configuration stays as it is.</p>;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard
    <section className={styles.diff} aria-label={label} tabIndex={0}>
      {hunks.map((hunk, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: a diff never changes its order
        <div key={index} className={styles.hunk}>
          {hunk.map((line) => (
            <Line key={`${line.before ?? "+"} ${line.after ?? "-"}`} line={line} />
          ))}
        </div>
      ))}
    </section>
  );
}

function Line({ line }: { line: DiffLine }) {
  return (
    <div className={classes(styles.line, styles[line.kind])}>
      <span className={styles.number}>{line.before ?? ""}</span>
      <span className={styles.number}>{line.after ?? ""}</span>
      <span className={styles.sign} aria-hidden="true">
        {SIGNS[line.kind]}
      </span>
      <span className="visually-hidden">{WORDS[line.kind]}</span>
      <span>{line.text}</span>
    </div>
  );
}
