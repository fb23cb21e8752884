/** Models that run somewhere, each with its state and how many requests it has. */

import { stateWord } from "../words.gen";
import { count } from "./format";
import { addressOf, PageLink } from "./page-link";
import styles from "./replica-chips.module.css";
import { Glyph } from "./status-pill";

interface Chip {
  readonly model: string;
  readonly state: string;
  readonly in_flight: number | null;
}

export function ReplicaChips({ replicas }: { replicas: readonly Chip[] }) {
  if (replicas.length === 0) return <span className={styles.none}>none</span>;
  return (
    <ul className={styles.chips}>
      {replicas.map((replica, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: two replicas of one model differ by their place only
        <li key={`${replica.model}#${index}`}>
          <PageLink href={addressOf.model(replica.model)} className={styles.chip}>
            <Glyph word={stateWord("replica", replica.state)} />
            {replica.model}
            <span className="visually-hidden">{stateWord("replica", replica.state).label}</span>
            {replica.in_flight ? <span className={styles.busy}>{count(replica.in_flight)}</span> : null}
          </PageLink>
        </li>
      ))}
    </ul>
  );
}
