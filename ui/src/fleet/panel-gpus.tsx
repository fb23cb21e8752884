/** The GPUs of a node, beside the list: what fills each, and for whom. */

import { useNodeExtra, useTopic } from "../live/live";
import type { NodeRow } from "../live/topics";
import { cardName, cardUses, usersText } from "../node/card-uses";
import { MemoryBar } from "../parts/bar";
import styles from "./fleet.module.css";

/** With more, the sum says more than the parts; the node's page has them all. */
const MOST_SHOWN = 8;

export function PanelGpus({ node }: { node: NodeRow }) {
  const cards = useNodeExtra(node.id, "cards") ?? [];
  const { items } = useTopic("replicas");
  if (cards.length === 0) return <Sum node={node} />;
  return (
    <>
      {cards.length > 1 && <Sum node={node} />}
      <ul className={styles.panelGpus} aria-label="GPUs">
        {cardUses(node.id, cards.slice(0, MOST_SHOWN), items.values()).map((use) => (
          <li key={use.card.id}>
            <strong className={styles.panelName}>{cardName(use.card)}</strong>
            <MemoryBar name={cardName(use.card)} share={use.share} />
            <span className={styles.quiet}>{usersText(use)}</span>
          </li>
        ))}
      </ul>
    </>
  );
}

function Sum({ node }: { node: NodeRow }) {
  return node.vram.total === 0 ? null : <MemoryBar name="VRAM" share={node.vram} isNamed />;
}
