/** Tabs whose choice is part of the address, so that each can be linked to and the back button works. */

import { Link, useLocation, useSearchParams } from "wouter";

import { classes } from "./classes";
import styles from "./tabs.module.css";

export interface Tab {
  readonly id: string;
  readonly title: string;
  /** A count beside the title. */
  readonly count?: number;
}

/** The chosen tab by the query `?tab=`; the first one where it says nothing known. */
export function useTab(tabs: readonly Tab[]): string {
  const [query] = useSearchParams();
  const named = query.get("tab");
  return tabs.find((tab) => tab.id === named)?.id ?? tabs[0]?.id ?? "";
}

/** Links to the tabs of a page. Each is a place of its own, so they are links and not buttons. Filters of one tab mean
 * nothing on another one and are left behind. */
export function Tabs({ tabs, label }: { tabs: readonly Tab[]; label: string }) {
  const chosen = useTab(tabs);
  const [path] = useLocation();
  return (
    <nav className={styles.tabs} aria-label={label}>
      {tabs.map((tab, index) => (
        <Link
          key={tab.id}
          href={index === 0 ? path : `${path}?tab=${tab.id}`}
          className={classes(styles.tab, tab.id === chosen && styles.chosen)}
          aria-current={tab.id === chosen ? "page" : undefined}
        >
          {tab.title}
          {tab.count !== undefined && <span className={styles.count}>{tab.count}</span>}
        </Link>
      ))}
    </nav>
  );
}
