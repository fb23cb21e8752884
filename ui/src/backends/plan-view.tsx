/** The plan of an operation: what is in the way first, then what would be done, node by node. */

import { useState } from "react";

import type { Schema } from "../api/client";
import { Button } from "../parts/button";
import { bytes, plural } from "../parts/format";
import { Notice } from "../parts/states";
import { StatusPill, WordPill } from "../parts/status-pill";
import type { StateWord } from "../words.gen";
import { bytesToFetch, outcomeOf, type Verb, type Verdict, type VerdictGroup, verdictGroups } from "./acts";
import styles from "./backends.module.css";

type Plan = Schema<"Plan">;
type Planned = Schema<"PlannedView">;

/** How verdicts of a plan are shown; the words are those of `corral backends plan`. */
const WORDS: Readonly<Record<Verdict, StateWord>> = {
  fits: { label: "Fits", tone: "green", glyph: "●", tooltip: "It would be sent to these nodes." },
  unknown: { label: "Unknown", tone: "yellow", glyph: "◔", tooltip: "It would be sent, and the node decides." },
  blocked: { label: "Blocked", tone: "purple", glyph: "⊘", tooltip: "Nothing would be sent there." },
  already: { label: "Already", tone: "grey", glyph: "○", tooltip: "Nothing is to be done there." },
};

export function PlanView({ plan, verb }: { plan: Plan; verb: Verb }) {
  const fetched = bytesToFetch(plan);
  return (
    <div className={styles.plan}>
      <p className={styles.count}>
        <strong>{plural(plan.items.length, "node")}</strong>
        {verdictGroups(plan.items).map((group) => (
          <span key={group.verdict}>
            {group.items.length} {summaryOf(group.verdict, verb)}
          </span>
        ))}
        {fetched !== null && fetched > 0 && <span>{bytes(fetched)} to fetch in all</span>}
      </p>
      {plan.rules.map((rule) => (
        <Notice key={rule} tone="red">
          In the way: {rule}.
        </Notice>
      ))}
      <Endings plan={plan} />
      <VerdictGroups items={plan.items} verb={verb} />
    </div>
  );
}

/** Nodes by what would happen there. */
export function VerdictGroups({ items, verb }: { items: readonly Planned[]; verb: Verb }) {
  return verdictGroups(items).map((group) => <Group key={group.verdict} group={group} verb={verb} />);
}

/** A verdict in the words of `corral backends plan`: "3 would install, 1 blocked". */
function summaryOf(verdict: Verdict, verb: Verb): string {
  if (verdict === "fits") return `would ${verb}`;
  return verdict === "already" ? "already as wanted" : verdict;
}

function Endings({ plan }: { plan: Plan }) {
  const { replicas_end: endings } = plan;
  if (endings.length === 0) return null;
  return (
    <Notice tone="yellow">
      <div>
        <strong>{plural(endings.length, "replica")} would end:</strong>
        <ul className={styles.endings}>
          {endings.slice(0, MOST_ROWS).map((ending) => (
            <li key={`${ending.node_id} ${ending.model}`}>
              {ending.model} on {ending.node}, {requestsText(ending.in_flight)}
            </li>
          ))}
        </ul>
      </div>
    </Notice>
  );
}

function requestsText(inFlight: number | null | undefined): string {
  if (inFlight === null || inFlight === undefined) return "an unknown number of requests under way";
  return inFlight === 0 ? "nothing under way" : `${plural(inFlight, "request")} under way`;
}

/** Rows that are drawn before somebody asks for all. */
const MOST_ROWS = 50;

function Group({ group, verb }: { group: VerdictGroup; verb: Verb }) {
  const [isWhole, setWhole] = useState(false);
  const shown = isWhole ? group.items : group.items.slice(0, MOST_ROWS);
  const word = WORDS[group.verdict];
  return (
    <section className={styles.group} aria-label={`${word.label}: ${plural(group.items.length, "node")}`}>
      <h3 className={styles.groupHead}>
        <WordPill word={word} />
        <span className={styles.quiet}>{plural(group.items.length, "node")}</span>
      </h3>
      <ul>
        {shown.map((item) => (
          <PlannedRow key={`${item.node_id} ${item.backend}`} item={item} verb={verb} />
        ))}
      </ul>
      {shown.length < group.items.length && (
        <Button look="quiet" isSmall onPress={() => setWhole(true)}>
          Show all {group.items.length}
        </Button>
      )}
    </section>
  );
}

function PlannedRow({ item, verb }: { item: Planned; verb: Verb }) {
  const size = item.download_bytes;
  return (
    <li className={styles.planned}>
      <span className={styles.node}>{item.node_name}</span>
      <StatusPill subject="node" state={item.node_status} />
      <span className={styles.build}>{item.backend}</span>
      <span className={styles.bytes}>{size === null || size === undefined ? "–" : bytes(size)}</span>
      <span className={styles.outcome}>{outcomeOf(item, verb)}</span>
    </li>
  );
}
