/** Memory as one bar: what is used, what is promised to models that are still loading, and what is free. */

import styles from "./bar.module.css";
import { classes } from "./classes";
import { bytes } from "./format";

export interface Share {
  readonly total: number | null;
  readonly used: number | null;
  readonly reserved: number | null;
}

interface BarProps {
  readonly name: string;
  readonly share: Share;
  /** The most that models may use of it, where somebody set a budget. */
  readonly budget?: number | null;
  readonly isCompact?: boolean;
  /** Bar and text as two cells of the grid around them. */
  readonly isLine?: boolean;
  /** With its name in the text, where nothing beside the bar says what it is. */
  readonly isNamed?: boolean;
}

export function MemoryBar({
  name,
  share,
  budget = null,
  isCompact = false,
  isLine = false,
  isNamed = false,
}: BarProps) {
  const { total, used, reserved } = share;
  if (!total)
    return <span className={styles.none}>{isCompact ? "–" : `${name}: ${total === 0 ? "none" : "not known"}`}</span>;
  const parts = sharesOf({ total, used: used ?? 0, reserved: reserved ?? 0 });
  const sentence = sentenceOf(name, share, budget);
  return (
    <span className={classes(styles.frame, isCompact && styles.compact, isLine && styles.line)} title={sentence}>
      <svg className={styles.bar} viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label={sentence}>
        <rect className={styles.free} width="100" height="8" />
        <rect className={styles.reserved} x={parts.used} width={parts.reserved} height="8" />
        <rect className={styles.used} width={parts.used} height="8" />
        {budget !== null && budget < total && (
          <rect className={styles.budget} x={(100 * budget) / total - 0.5} width="1" height="8" />
        )}
      </svg>
      <span className={styles.text}>
        {isNamed && `${name} `}
        {isCompact ? `${bytes(used)} / ${bytes(total)}` : textOf(share, budget)}
      </span>
    </span>
  );
}

function textOf({ total, used, reserved }: Share, budget: number | null): string {
  const parts = [`${bytes(used)} of ${bytes(total)} used`];
  if (reserved) parts.push(`${bytes(reserved)} reserved`);
  if (budget !== null) parts.push(`budget ${bytes(budget)}`);
  return parts.join(" · ");
}

/** Percentages that fit into the bar. What is reserved counts only as far as it is not used already: a model that is
 * loaded has taken what was reserved for it. */
export function sharesOf({ total, used, reserved }: { total: number; used: number; reserved: number }) {
  const share = (bytes: number) => Math.min(100, Math.max(0, (100 * bytes) / total));
  return { used: share(used), reserved: share(Math.max(used, reserved)) - share(used) };
}

function sentenceOf(name: string, { total, used, reserved }: Share, budget: number | null): string {
  const free = total === null || used === null ? null : Math.max(0, total - Math.max(used, reserved ?? 0));
  const parts = [`${name}: ${bytes(used)} used`, `${bytes(reserved ?? 0)} reserved`, `${bytes(free)} free`];
  return `${parts.join(", ")} of ${bytes(total)}${budget === null ? "" : `; budget ${bytes(budget)}`}`;
}

/** How far something is; without a share, only that it is under way. */
export function ProgressBar({ name, percentage }: { name: string; percentage: number | null }) {
  const value = percentage === null ? 0 : Math.min(100, Math.max(0, percentage));
  return (
    <span
      className={styles.frame}
      role="progressbar"
      aria-label={name}
      aria-valuemin={0}
      aria-valuemax={100}
      {...(percentage === null ? {} : { "aria-valuenow": Math.floor(value) })}
    >
      <svg className={styles.bar} viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
        <rect className={styles.free} width="100" height="8" />
        <rect className={styles.progress} width={value} height="8" />
      </svg>
    </span>
  );
}
