/** The frame of every page: its title, what can be done on it, and what it shows. */

import { type ReactNode, useEffect } from "react";

import styles from "./page.module.css";

interface PageProps {
  readonly title: string;
  /** Beside the title, in small: a state, a count. */
  readonly note?: ReactNode;
  readonly actions?: ReactNode;
  readonly children: ReactNode;
}

export function Page({ title, note, actions, children }: PageProps) {
  useEffect(() => {
    document.title = `${title} · Corral`;
  }, [title]);
  return (
    <div className={styles.page}>
      <header className={styles.head}>
        <h1 className={styles.title}>{title}</h1>
        {note !== undefined && <div className={styles.note}>{note}</div>}
        {actions !== undefined && <div className={styles.actions}>{actions}</div>}
      </header>
      {children}
    </div>
  );
}

/** One panel of a page, with a heading. */
export function Section({
  title,
  actions,
  children,
  isBare = false,
}: {
  title?: ReactNode;
  actions?: ReactNode;
  /** Null for a panel that is closed. */
  children: ReactNode;
  /** Without padding, for tables and lists that reach the border. */
  isBare?: boolean;
}) {
  return (
    <section className={styles.section}>
      {title !== undefined && (
        <div className={styles.sectionHead}>
          <h2 className={styles.sectionTitle}>{title}</h2>
          {actions !== undefined && <div className={styles.actions}>{actions}</div>}
        </div>
      )}
      {children !== null && <div className={isBare ? styles.bare : styles.body}>{children}</div>}
    </section>
  );
}

/** Facts: a word and its value. `isWide` puts them side by side where there is room. */
export function Facts({ children, isWide = false }: { children: ReactNode; isWide?: boolean }) {
  return <dl className={isWide ? styles.wideFacts : styles.facts}>{children}</dl>;
}

export function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <div className={styles.fact}>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
