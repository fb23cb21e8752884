/** Which nodes an act means: all, those with labels, or ticked ones. The count follows the fleet. */

import { useMemo, useState } from "react";

import { Chips } from "../parts/chips";
import { Checkbox, SearchField, TextField } from "../parts/fields";
import { plural } from "../parts/format";
import { readLabels, tellingLabels } from "../parts/labels";
import { Segments } from "../parts/segments";
import { StatusPill } from "../parts/status-pill";
import { type Choice, type ChoosableNode, meant, type Reach } from "./acts";
import styles from "./backends.module.css";
import { namesText } from "./matrix-rows";

const AWAY = new Set(["offline", "unhealthy"]);

interface ChooserProps {
  readonly choice: Choice;
  readonly nodes: readonly ChoosableNode[];
  readonly onChange: (choice: Choice) => void;
}

export function TargetChooser({ choice, nodes, onChange }: ChooserProps) {
  const reaches: { id: Reach; label: string }[] = [
    { id: "all", label: `All nodes (${nodes.length})` },
    { id: "labels", label: "Nodes with labels" },
    { id: "nodes", label: "Ticked nodes" },
  ];
  return (
    <div className={styles.chooser}>
      <Segments
        label="On"
        isLabelShown
        segments={reaches}
        value={choice.reach}
        onChange={(reach) => onChange({ ...choice, reach })}
      />
      {choice.reach === "labels" && <LabelChooser {...{ choice, nodes, onChange }} />}
      {choice.reach === "nodes" && <NodeTicks {...{ choice, nodes, onChange }} />}
      <Count choice={choice} nodes={nodes} />
    </div>
  );
}

function Count({ choice, nodes }: Omit<ChooserProps, "onChange">) {
  const those = meant(choice, nodes);
  const away = those.filter((node) => AWAY.has(node.status)).length;
  return (
    <p role="status" className={styles.count}>
      <strong>{plural(those.length, "node")}</strong>
      {those.length > 0 && <span>{namesText(those, 4)}</span>}
      {away > 0 && <span>{away} away now: it is done when they come back</span>}
    </p>
  );
}

function LabelChooser({ choice, nodes, onChange }: ChooserProps) {
  const chips = useMemo(() => tellingLabels(nodes), [nodes]);
  const add = (text: string) => onChange({ ...choice, labels: [choice.labels.trim(), text].filter(Boolean).join(" ") });
  return (
    <>
      <TextField
        label="Labels"
        value={choice.labels}
        onChange={(labels) => onChange({ ...choice, labels })}
        error={readLabels(choice.labels).problem}
        placeholder="zone=a gpu.vendor=nvidia"
        hint="A node must have all of them."
        isMono
      />
      <Chips label="Labels of this fleet" chips={chips} onChoose={add} />
    </>
  );
}

/** Boxes that are drawn at once; a search finds the rest. */
const MOST_BOXES = 200;

function NodeTicks({ choice, nodes, onChange }: ChooserProps) {
  const [text, setText] = useState("");
  const word = text.trim().toLowerCase();
  const found = nodes.filter((node) => node.name.toLowerCase().includes(word));
  const shown = found.slice(0, MOST_BOXES);
  const tick = (id: string, isTicked: boolean) => {
    const ticked = new Set(choice.nodes);
    if (isTicked) ticked.add(id);
    else ticked.delete(id);
    onChange({ ...choice, nodes: ticked });
  };
  return (
    <div className={styles.ticks}>
      <SearchField label="Find nodes" value={text} onChange={setText} />
      <ul className={styles.boxes} aria-label="Nodes">
        {shown.map((node) => (
          <li key={node.id} className={styles.box}>
            <Checkbox isSelected={choice.nodes.has(node.id)} onChange={(isTicked) => tick(node.id, isTicked)}>
              {node.name}
            </Checkbox>
            <StatusPill subject="node" state={node.status} />
          </li>
        ))}
      </ul>
      {found.length > shown.length && (
        <p className={styles.quiet}>{found.length - shown.length} more: search by name.</p>
      )}
    </div>
  );
}
