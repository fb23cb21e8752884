/** What a change of the fleet rules would lead to: which rules change, and what nodes would get or lose. */

import type { Verb } from "../backends/acts";
import { VerdictGroups } from "../backends/plan-view";
import { plural } from "../parts/format";
import { Notice } from "../parts/states";
import { TargetPill } from "../parts/status-pill";
import { changeLines, type RulesPlan } from "./rule-plan";
import styles from "./rules.module.css";

export function RulePlanView({ plan }: { plan: RulesPlan }) {
  const lines = changeLines(plan);
  return (
    <div className={styles.plan}>
      {lines.length === 0 ? (
        <p>The rules would stay as they are.</p>
      ) : (
        <ul className={styles.changes}>{lines.map(line)}</ul>
      )}
      {Object.entries(plan.doubts).map(([rule, doubt]) => (
        <Notice key={rule} tone="yellow">
          {rule}: {doubt}
        </Notice>
      ))}
      {plan.acts.length === 0 && <p className={styles.quiet}>Nothing would be installed or deleted now.</p>}
      {plan.acts.map((act) => (
        <section key={`${act.verb} ${act.backend} ${act.rule}`} className={styles.act}>
          <h3>
            {act.verb} {act.backend} on {plural(act.nodes.length, "node")}
            <span className={styles.because}>{act.rule === "" ? "no rule demands it" : `because of ${act.rule}`}</span>
          </h3>
          <VerdictGroups items={act.nodes} verb={act.verb as Verb} />
        </section>
      ))}
      {plan.unmet.length > 0 && (
        <section className={styles.act}>
          <h3>Wanted already, and not reached yet</h3>
          <ul className={styles.unmet}>
            {plan.unmet.map((place) => (
              <li key={`${place.rule} ${place.node_name}`}>
                <strong>{place.node_name}</strong> <TargetPill status={place.status} verb="install" /> {place.message}
              </li>
            ))}
          </ul>
        </section>
      )}
    </div>
  );
}

function line(text: string) {
  return (
    <li key={text}>
      <code>{text}</code>
    </li>
  );
}
