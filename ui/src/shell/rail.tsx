/** The rail at the left: the rooms of the page. On a phone it is a bar at the bottom. */

import { Link, useLocation } from "wouter";
import { useSummary } from "../live/live";
import type { Page } from "../pages";
import { classes } from "../parts/classes";
import { Icon } from "../parts/icons";
import { Mark } from "./mark";
import styles from "./rail.module.css";

export function Rail({ pages }: { pages: readonly Page[] }) {
  const [location] = useLocation();
  return (
    <nav className={styles.rail} aria-label="Pages">
      <Link href="/" className={styles.mark} aria-label="Corral, first page">
        <Mark />
        <span className={styles.name}>Corral</span>
      </Link>
      {pages.map((page) => (
        <RailLink key={page.path} page={page} isHere={isBelow(location, page.path)} />
      ))}
    </nav>
  );
}

function RailLink({ page, isHere }: { page: Page; isHere: boolean }) {
  return (
    <Link
      href={page.path}
      className={classes(styles.link, isHere && styles.here)}
      aria-current={isHere ? "page" : undefined}
      title={page.rail === null ? undefined : `g ${page.rail.letter}`}
    >
      {page.rail !== null && <Icon name={page.rail.icon} />}
      <span className={styles.word}>{page.title}</span>
      <Badge page={page} />
    </Link>
  );
}

/** How many things want attention, beside the room where they are. */
function Badge({ page }: { page: Page }) {
  const summary = useSummary();
  const number = page.path === "/fleet" ? (summary?.attention["alarm"] ?? 0) : 0;
  if (number === 0) return null;
  return (
    <span className={styles.badge} role="img" aria-label={`${number} alarms`}>
      {number}
    </span>
  );
}

/** A node is part of the fleet, and so is adding one. */
const BELONGS: Readonly<Record<string, string>> = { "/nodes": "/fleet", "/join": "/fleet" };

function isBelow(location: string, path: string): boolean {
  const first = `/${location.split("/")[1] ?? ""}`;
  return (BELONGS[first] ?? first) === path;
}
