/** What an act would do, consequence by consequence, the gravest first. */

import { stateWord } from "../words.gen";
import styles from "./consequences.module.css";
import { plural } from "./format";
import type { PlanLike } from "./plan-steps";
import { WordPill } from "./status-pill";

export interface Consequence {
  readonly kind: string;
  readonly subject: string;
  readonly detail?: string;
  readonly node?: string;
  /** Where it goes. */
  readonly to_node?: string;
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
          <strong>{plural(plan.in_flight ?? 0, "request")}</strong> under way at what would end.
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
                {placesOf(one)}
                {one.detail ? <span className={styles.detail}> {one.detail}</span> : null}
              </span>
            </li>
          ))}
        </ul>
      )}
    </>
  );
}

/** " from w1 to w2", " on w1", " on w2": as far as it has places. */
function placesOf({ node, to_node: goal }: Consequence): string {
  if (node && goal && node !== goal) return ` from ${node} to ${goal}`;
  return node || goal ? ` on ${node || goal}` : "";
}

/** Whether replicas that answer requests now would end: then the name has to be typed. */
export function endsReplicasInUse(plan: ActPlan): boolean {
  const isGrave = (plan.consequences ?? []).some((one) => one.kind === "ends" || one.kind === "loses_service");
  return isGrave && plan.in_flight !== 0;
}
