/** What needs somebody, the most urgent first: what · since · why · one button. */

import { useState } from "react";

import { useTopic } from "../live/live";
import type { AttentionItem } from "../live/topics";
import { Button, LinkButton } from "../parts/button";
import { CopyButton } from "../parts/code-block";
import { firstOfNodes, shortDigests } from "../parts/format";
import { Section } from "../parts/page";
import { Glyph } from "../parts/status-pill";
import { Age } from "../parts/time";
import { useMay } from "../shell/session";
import { stateWord } from "../words.gen";
import styles from "./attention.module.css";
import { inOrder } from "./attention-order";

const SHOWN_AT_FIRST = 6;

export function Attention() {
  const { items, isWhole } = useTopic("attention");
  const [isOpen, setOpen] = useState(false);
  const mayAdmit = useMay("nodes.admit");
  if (!isWhole) return null;
  if (items.size === 0) return <AllWell />;
  // Machines that wait for approval have a list of their own below, with what decides about them.
  const all = inOrder(items.values()).filter((item) => !(mayAdmit && item.kind === "pending"));
  if (all.length === 0) return null;
  const shown = isOpen ? all : all.slice(0, SHOWN_AT_FIRST);
  return (
    <Section title={`Needs attention, ${all.length}`} isBare>
      <ul>
        {shown.map((item) => (
          <Item key={item.id} item={item} />
        ))}
      </ul>
      {all.length > SHOWN_AT_FIRST && (
        <div className={styles.more}>
          <Button look="quiet" isSmall onPress={() => setOpen(!isOpen)}>
            {isOpen ? "Show fewer" : `Show all ${all.length}`}
          </Button>
        </div>
      )}
    </Section>
  );
}

function AllWell() {
  return (
    <p className={styles.well}>
      <Glyph word={stateWord("node", "healthy")} /> Nothing needs attention.
    </p>
  );
}

function Item({ item }: { item: AttentionItem }) {
  const word = stateWord("severity", item.severity);
  return (
    <li className={styles.item}>
      <span title={`${word.label}: ${word.tooltip}`}>
        <Glyph word={word} />
        <span className="visually-hidden">{word.label}: </span>
      </span>
      <div className={styles.text}>
        <strong className={styles.title}>{item.title}</strong>
        <span className={styles.why} title={item.why}>
          {shortDigests(firstOfNodes(item.why))}
        </span>
      </div>
      <span className={styles.since}>{item.since && <Age at={item.since} />}</span>
      <span className={styles.act}>
        {item.act && (
          <>
            <LinkButton href={pathOf(item.act.href)} isSmall>
              {item.act.label}
            </LinkButton>
            <CopyButton text={item.act.command} label={`Copy the command ${item.act.command}`} />
          </>
        )}
      </span>
    </li>
  );
}

/** The server names whole paths; links inside the page begin below its base. */
function pathOf(href: string): string {
  return href.replace(/^\/ui(?=\/|$)/, "") || "/";
}
