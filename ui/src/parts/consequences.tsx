/** What an act would do, consequence by consequence, the gravest first. */

import { stateWord } from "../words.gen";
import styles from "./consequences.module.css";
import { count } from "./format";
import type { PlanLike } from "./plan-steps";
import { WordPill } from "./status-pill";

export interface Consequence {
  readonly kind: string;
  readonly subject: string;
  readonly detail?: string;
  readonly node?: string;
}

/** A plan of the server whose acts are told as consequences: drains, removals, rules of scheduling. */
export interface ActPlan extends PlanLike {
  readonly consequences?: readonly Consequence[];
  readonly in_flight?: number | null;
}

const ORDER = ["loses_service", "not_added", "deleted", "ends", "cancelled", "stays", "moves", "added", "kept"];

export function Consequences({ plan, nothing }: { plan: ActPlan; nothing: string }) {
  const all = (plan.consequences ?? []).toSorted((one, other) => ORDER.indexOf(one.kind) - ORDER.indexOf(other.kind));
  return (
    <>
      {plan.in_flight === null && <p>How many requests are under way there is not known now: a gateway is silent.</p>}
      {Boolean(plan.in_flight) && (
        <p>
          <strong>{count(plan.in_flight)}</strong> requests are under way at what would end.
        </p>
      )}
      {all.length === 0 ? (
        <p>{nothing}</p>
      ) : (
        <ul className={styles.list}>
          {all.map((one) => (
            <li key={`${one.kind} ${one.subject} ${one.node ?? ""} ${one.detail ?? ""}`} className={styles.line}>
              <WordPill word={stateWord("consequence", one.kind)} isPlanned />
              <span className={styles.text}>
                <strong>{one.subject}</strong>
                {one.node ? ` on ${one.node}` : ""}
                {one.detail ? <span className={styles.detail}> {one.detail}</span> : null}
              </span>
            </li>
          ))}
        </ul>
      )}
    </>
  );
}

/** Whether replicas that answer requests now would end: then the name has to be typed. */
export function endsReplicasInUse(plan: ActPlan): boolean {
  const isGrave = (plan.consequences ?? []).some((one) => one.kind === "ends" || one.kind === "loses_service");
  return isGrave && plan.in_flight !== 0;
}
