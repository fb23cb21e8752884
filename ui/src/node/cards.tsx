/** The GPUs of a node one by one: what fills each, and which replicas may use it. */

import { useState } from "react";

import { answer, api, type Schema } from "../api/client";
import { useNodeExtra } from "../live/live";
import type { NodeRow } from "../live/topics";
import { MemoryBar } from "../parts/bar";
import { Button } from "../parts/button";
import { Section } from "../parts/page";
import { Failure } from "../parts/states";
import { useMay } from "../shell/session";
import styles from "./node.module.css";

export function Cards({ node }: { node: NodeRow }) {
  const cards = useNodeExtra(node.id, "cards") ?? [];
  if (cards.length === 0) return null;
  return (
    <Section title={`GPUs, ${cards.length}`}>
      <ul className={styles.cards}>
        {cards.map((card) => (
          <Card key={card.id} nodeId={node.id} card={card} />
        ))}
      </ul>
    </Section>
  );
}

function Card({ nodeId, card }: { nodeId: string; card: Schema<"CardView"> }) {
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
  const replicas = card.replicas ?? [];
  return (
    <li className={styles.card}>
      <div className={styles.cardHead}>
        <strong>{card.name || card.id}</strong>
        {mayAct && (
          <Button isSmall look="quiet" onPress={() => void change()}>
            {card.is_out ? "Put back" : "Take out of service"}
          </Button>
        )}
      </div>
      <MemoryBar name={card.name || card.id} share={{ total: card.total, used: card.total - card.free, reserved: 0 }} />
      {card.is_out && <p className={styles.out}>⊘ out of service: it gets nothing new</p>}
      <p className={styles.quiet}>
        {replicas.length === 0 ? "no replica may use it now" : `used by ${replicas.join(", ")}`}
        {card.shares_ram ? "; it shares the machine's memory" : ""}
      </p>
      {error !== null && <Failure error={error} />}
    </li>
  );
}
