/** One fleet rule: what it demands, how many nodes have it, and why others do not. */

import { Button } from "../parts/button";
import { SidePanel } from "../parts/dialog";
import { labelText } from "../parts/labels";
import { Fact, Facts } from "../parts/page";
import { PageLink } from "../parts/page-link";
import { Notice } from "../parts/states";
import { StatusPill } from "../parts/status-pill";
import { Moment } from "../parts/time";
import { Satisfied } from "./fleet-rules";
import type { RuleView } from "./rule-set";
import styles from "./rules.module.css";

interface RulePanelProps {
  readonly rule: RuleView;
  readonly onEdit?: () => void;
  readonly onRemove?: () => void;
  readonly onClose: () => void;
}

export function RulePanel({ rule, onEdit, onRemove, onClose }: RulePanelProps) {
  const unmet = Object.entries(rule.unmet);
  return (
    <SidePanel title={rule.name} onClose={onClose}>
      {onEdit !== undefined && onRemove !== undefined && (
        <div className={styles.acts}>
          <Button onPress={onEdit}>Change…</Button>
          <Button onPress={onRemove}>Delete…</Button>
        </div>
      )}
      {rule.doubt !== "" && <Notice tone="yellow">{rule.doubt}</Notice>}
      <Facts>
        <Fact name="Demands">
          <PageLink href={`/backends?backend=${encodeURIComponent(rule.backend)}`}>{rule.backend}</PageLink>
        </Fact>
        <Fact name="On">{labelText(rule.labels) || "every node"}</Fact>
        <Fact name="From">{rule.uri === "" ? "a gallery" : <code>{rule.uri}</code>}</Fact>
        {rule.alias !== "" && <Fact name="Alias">{rule.alias}</Fact>}
        <Fact name="Satisfied">
          <Satisfied rule={rule} />
        </Fact>
        <Fact name="Nodes">
          <ul className={styles.counts}>
            {Object.entries(rule.counts).map(([status, count]) => (
              <li key={status}>
                {count} <StatusPill subject="target" state={status} />
              </li>
            ))}
          </ul>
        </Fact>
        <Fact name="Made">
          <Moment at={rule.made_at} /> by {rule.made_by}
        </Fact>
      </Facts>
      {unmet.length > 0 && (
        <div>
          <h3 className={styles.panelHead}>What is in the way</h3>
          <ul className={styles.unmet}>
            {unmet.map(([node, why]) => (
              <li key={node}>
                <strong>{node}</strong> {why}
              </li>
            ))}
          </ul>
        </div>
      )}
    </SidePanel>
  );
}
