/** The form of a rule of scheduling. */

import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";

import { answer, api } from "../api/client";
import { choosable } from "../backends/acts";
import { namesText } from "../backends/matrix-rows";
import { useTopic } from "../live/live";
import { Chips } from "../parts/chips";
import { Checkbox, Select, TextField } from "../parts/fields";
import { FieldRow } from "../parts/form-dialog";
import { plural } from "../parts/format";
import { readLabels, tellingLabels } from "../parts/labels";
import { Segments } from "../parts/segments";
import styles from "./rules.module.css";
import { allowedNodes, type DraftField, type SchedulingDraft, schedulingProblems } from "./scheduling-draft";

interface FieldsProps {
  readonly draft: SchedulingDraft;
  readonly isNew: boolean;
  readonly onChange: (draft: SchedulingDraft) => void;
}

export function SchedulingFields({ draft, isNew, onChange }: FieldsProps) {
  const problems = schedulingProblems(draft);
  const about = (field: DraftField) => (draft[field] === "" ? "" : (problems[field] ?? ""));
  const set = (field: keyof SchedulingDraft) => (value: string) => onChange({ ...draft, [field]: value });
  return (
    <div className={styles.form}>
      {isNew && <ModelField value={draft.model} onChange={set("model")} />}
      <Segments
        label="Replicas"
        isLabelShown
        segments={[
          { id: "counts", label: "Between two numbers" },
          { id: "spread", label: "One on every node" },
          { id: "asked", label: "When asked" },
        ]}
        value={draft.form}
        onChange={(form) => onChange({ ...draft, form })}
      />
      {draft.form === "counts" && (
        <FieldRow>
          <TextField
            label="At least"
            value={draft.least}
            onChange={set("least")}
            error={about("least")}
            hint="Kept loaded always."
          />
          <TextField
            label="At most"
            value={draft.most}
            onChange={set("most")}
            error={about("most")}
            hint="0: without limit."
          />
        </FieldRow>
      )}
      <Places draft={draft} onChange={onChange} error={about("labels")} />
      <FieldRow>
        <TextField
          label="Unload when idle for"
          value={draft.idle}
          onChange={set("idle")}
          error={about("idle")}
          placeholder="as the settings say"
          hint="Such as 10m; never. Only above the least number."
        />
        <Select
          label="Requests go to"
          choices={[
            { id: "", label: "As the settings say" },
            { id: "round_robin", label: "Each replica in turn" },
            { id: "prefix_cache", label: "Who knows the prompt" },
          ]}
          value={draft.routePolicy}
          onChange={set("routePolicy")}
        />
      </FieldRow>
    </div>
  );
}

function ModelField({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  const { data } = useQuery({ queryKey: ["models", "names"], queryFn: () => answer(api.GET("/api/v1/models")) });
  const word = value.trim().toLowerCase();
  const names = (data?.items ?? [])
    .map((model) => model.name)
    .filter((name) => name !== value && name.toLowerCase().includes(word));
  return (
    <>
      <TextField
        label="Model"
        value={value}
        onChange={onChange}
        hint="A name or an alias; it need not exist yet."
        autoFocus
      />
      <Chips label="Models of this fleet" chips={names.slice(0, 8).map((text) => ({ text }))} onChoose={onChange} />
    </>
  );
}

/** Above so many nodes, single ones are pinned by their label `node.name`, or by the command line. */
const MOST_BOXES = 100;

function Places({
  draft,
  onChange,
  error,
}: {
  draft: SchedulingDraft;
  onChange: (draft: SchedulingDraft) => void;
  error: string;
}) {
  const { items } = useTopic("nodes");
  const nodes = useMemo(() => choosable(items.values()), [items]);
  const chips = useMemo(() => tellingLabels(nodes, 8), [nodes]);
  const { labels, problem } = readLabels(draft.labels);
  const allowed = problem === "" ? allowedNodes(nodes, labels, draft.pinned) : [];
  const add = (text: string) => onChange({ ...draft, labels: [draft.labels.trim(), text].filter(Boolean).join(" ") });
  const pin = (id: string, isPinned: boolean) => {
    const pinned = new Set(draft.pinned);
    if (isPinned) pinned.add(id);
    else pinned.delete(id);
    onChange({ ...draft, pinned });
  };
  return (
    <>
      <TextField
        label="Only on nodes with these labels"
        value={draft.labels}
        onChange={(text) => onChange({ ...draft, labels: text })}
        error={error}
        placeholder="any node"
        isMono
      />
      <Chips label="Labels of this fleet" chips={chips} onChoose={add} />
      {nodes.length <= MOST_BOXES && (
        <fieldset className={styles.ticks}>
          <legend>Only on these nodes (none ticked: any)</legend>
          {nodes.map((node) => (
            <Checkbox
              key={node.id}
              isSelected={draft.pinned.has(node.id)}
              onChange={(isPinned) => pin(node.id, isPinned)}
            >
              {node.name}
            </Checkbox>
          ))}
        </fieldset>
      )}
      <p role="status" className={styles.quiet}>
        <strong>May run on {plural(allowed.length, "node")}</strong> {namesText(allowed, 4)}
      </p>
    </>
  );
}
