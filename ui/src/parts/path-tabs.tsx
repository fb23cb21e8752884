/** Tabs that are paths below a page, such as `/backends/drift`: each can be linked to, and has filters of its own. */

import { Link, useLocation } from "wouter";

import { classes } from "./classes";
import styles from "./tabs.module.css";

export interface PathTab {
  /** Below the page; `/` for the first one. */
  readonly path: string;
  readonly title: string;
  /** A count beside the title. */
  readonly count?: number | undefined;
}

/** The path of the chosen tab; that of the first one where the address names none. */
export function usePathTab(tabs: readonly PathTab[]): string {
  const [location] = useLocation();
  const first = `/${location.split("/")[1] ?? ""}`;
  return tabs.find((tab) => tab.path === first)?.path ?? tabs[0]?.path ?? "/";
}

export function PathTabs({ tabs, label }: { tabs: readonly PathTab[]; label: string }) {
  const chosen = usePathTab(tabs);
  return (
    <nav className={styles.tabs} aria-label={label}>
      {tabs.map((tab) => (
        <Link
          key={tab.path}
          href={tab.path}
          className={classes(styles.tab, tab.path === chosen && styles.chosen)}
          aria-current={tab.path === chosen ? "page" : undefined}
        >
          {tab.title}
          {tab.count !== undefined && tab.count > 0 && <span className={styles.count}>{tab.count}</span>}
        </Link>
      ))}
    </nav>
  );
}
