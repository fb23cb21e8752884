/** The GPUs of a node one by one: what fills each, and which replicas may use it. */

import { useState } from "react";

import { answer, api, type Schema } from "../api/client";
import { useNodeExtra, useTopic } from "../live/live";
import type { NodeRow } from "../live/topics";
import { MemoryBar } from "../parts/bar";
import { Button } from "../parts/button";
import { Section } from "../parts/page";
import { Failure } from "../parts/states";
import { useMay } from "../shell/session";
import { type CardUse, cardName, cardUses, usersText } from "./card-uses";
import styles from "./node.module.css";

export function Cards({ node }: { node: NodeRow }) {
  const cards = useNodeExtra(node.id, "cards") ?? [];
  const { items } = useTopic("replicas");
  if (cards.length === 0) return null;
  return (
    <Section title={`GPUs, ${cards.length}`}>
      <ul className={styles.cards}>
        {cardUses(node.id, cards, items.values()).map((use) => (
          <Card key={use.card.id} nodeId={node.id} use={use} />
        ))}
      </ul>
    </Section>
  );
}

function Card({ nodeId, use }: { nodeId: string; use: CardUse<Schema<"CardView">> }) {
  const { card } = use;
  const [error, setError] = useState<unknown>(null);
  const mayAct = useMay("nodes.act");
  const change = async () => {
    setError(null);
    try {
      const path = { id: nodeId, card: card.id };
      await answer(api.PUT("/api/v1/nodes/{id}/cards/{card}", { params: { path }, body: { is_out: !card.is_out } }));
    } catch (refusal) {
      setError(refusal);
    }
  };
  return (
    <li className={styles.card}>
      <div className={styles.cardHead}>
        <strong>{cardName(card)}</strong>
        {mayAct && (
          <Button isSmall look="quiet" onPress={() => void change()}>
            {card.is_out ? "Put back" : "Take out of service"}
          </Button>
        )}
      </div>
      <MemoryBar name={cardName(card)} share={use.share} />
      {card.is_out && <p className={styles.out}>⊘ out of service: it gets nothing new</p>}
      <p className={styles.quiet}>
        {usersText(use)}
        {card.shares_ram ? "; it shares the machine's memory" : ""}
      </p>
      {error !== null && <Failure error={error} />}
    </li>
  );
}
