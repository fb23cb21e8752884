/** What a page shows when it has nothing to show: empty, failed, forbidden, not there yet. */

import type { ReactNode } from "react";

import { ApiError, sentenceOf } from "../api/errors";
import { Button } from "./button";
import { CopyText } from "./code-block";
import styles from "./states.module.css";

/** One sentence, one act, and the command that does the same. */
export function Empty({ children, act, command }: { children: ReactNode; act?: ReactNode; command?: string }) {
  return (
    <div className={styles.state} data-state="">
      <p>{children}</p>
      {act !== undefined && <div>{act}</div>}
      {command !== undefined && (
        <p className={styles.command}>
          In a terminal: <CopyText text={command} />
        </p>
      )}
    </div>
  );
}

/** The server's own sentence, what still works, and another try. */
export function Failure({
  error,
  onRetry,
  works,
}: {
  error: unknown;
  onRetry?: () => void;
  works?: string | undefined;
}) {
  const requestId = error instanceof ApiError ? error.requestId : "";
  return (
    <div className={styles.state} role="alert" data-state="">
      <p className={styles.failure}>
        <span aria-hidden="true">✕ </span>
        {sentenceOf(error)}
      </p>
      {works !== undefined && <p className={styles.quiet}>{works}</p>}
      {requestId !== "" && (
        <p className={styles.quiet}>
          Request <CopyText text={requestId} />
        </p>
      )}
      {onRetry !== undefined && (
        <Button onPress={onRetry} icon="retry">
          Try again
        </Button>
      )}
    </div>
  );
}

export function Forbidden({ needs }: { needs: readonly string[] }) {
  return (
    <div className={styles.state}>
      <p>
        Your key does not open this page. It needs the permission {needs.map(quoted).join(" or ")}, which an
        administrator can give.
      </p>
    </div>
  );
}

function quoted(permission: string): string {
  return `“${permission}”`;
}

/** Grey lines in the place of what is on its way. */
export function Loading({ lines = 3, label = "Loading" }: { lines?: number; label?: string }) {
  return (
    <div className={styles.loading} role="status" aria-label={label}>
      {Array.from({ length: lines }, (_, line) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: lines have no identity
        <span key={line} className={styles.line} />
      ))}
    </div>
  );
}

/** A sentence in a panel of its own, for what holds for the whole page. */
export function Notice({ tone, children }: { tone: "red" | "yellow" | "blue" | "grey"; children: ReactNode }) {
  return <div className={`${styles.notice} ${styles[tone] ?? ""}`}>{children}</div>;
}
