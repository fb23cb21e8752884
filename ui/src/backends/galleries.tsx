/** Where the frontend looks for backends, how fresh that is, and what cannot be read. */

import type { Schema } from "../api/client";
import { plural } from "../parts/format";
import { Section } from "../parts/page";
import { Age } from "../parts/time";
import styles from "./backends.module.css";

type Gallery = Schema<"GalleryView">;

export function Galleries({ galleries }: { galleries: readonly Gallery[] }) {
  return (
    <Section title="Galleries">
      <ul className={styles.galleries}>
        {galleries.map((gallery) => (
          <li key={gallery.name} className={styles.gallery}>
            <strong>{gallery.name}</strong>
            <span>{plural(gallery.entries, "entry", "entries")}</span>
            {gallery.checked_at !== null && (
              <span className={styles.quiet}>
                asked <Age at={gallery.checked_at} />
              </span>
            )}
            {gallery.problem !== "" && (
              <span className={styles.problem}>
                <span aria-hidden="true">✕ </span>
                {gallery.entries > 0 ? "Not up to date: " : "Cannot be read: "}
                {gallery.problem}
              </span>
            )}
            {gallery.skipped.length > 0 && <Skipped gallery={gallery} />}
          </li>
        ))}
      </ul>
    </Section>
  );
}

function Skipped({ gallery }: { gallery: Gallery }) {
  return (
    <details className={styles.skipped}>
      <summary>{plural(gallery.skipped.length, "entry", "entries")} left out</summary>
      <ul>
        {gallery.skipped.map((entry) => (
          <li key={`${entry.name} ${entry.line}`}>
            {entry.name || `line ${entry.line}`}: {entry.problem}
          </li>
        ))}
      </ul>
    </details>
  );
}
