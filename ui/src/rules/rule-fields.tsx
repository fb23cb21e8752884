/** The form of a fleet rule. The count of nodes that it matches follows what is typed. */

import { useMemo } from "react";

import { choosable } from "../backends/acts";
import { namesText } from "../backends/matrix-rows";
import { useOffers } from "../backends/queries";
import { useTopic } from "../live/live";
import { Chips } from "../parts/chips";
import { Checkbox, TextField } from "../parts/fields";
import { plural } from "../parts/format";
import { hasLabels, readLabels, tellingLabels } from "../parts/labels";
import { useMay } from "../shell/session";
import { draftProblems, type RuleDraft, type RuleEdit, type RuleView } from "./rule-set";
import styles from "./rules.module.css";

interface RuleFieldsProps {
  readonly edit: RuleEdit;
  readonly rules: readonly RuleView[];
  readonly onChange: (edit: RuleEdit) => void;
}

export function RuleFields({ edit, rules, onChange }: RuleFieldsProps) {
  if (edit.kind === "remove") {
    return (
      <div className={styles.form}>
        <p>Nothing demands the backend by this rule any more. Where it is installed, it stays.</p>
        <Checkbox isSelected={edit.deletes} onChange={(deletes) => onChange({ ...edit, deletes })}>
          Also delete the backend where only this rule demanded it
        </Checkbox>
      </div>
    );
  }
  return <DraftFields edit={edit} rules={rules} onChange={(draft) => onChange({ ...edit, draft })} />;
}

interface DraftFieldsProps {
  readonly edit: Extract<RuleEdit, { kind: "put" }>;
  readonly rules: readonly RuleView[];
  readonly onChange: (draft: RuleDraft) => void;
}

function DraftFields({ edit, rules, onChange }: DraftFieldsProps) {
  const { draft, was } = edit;
  const mayTrust = useMay("backends.trust");
  const problems = draftProblems(draft, was, rules);
  const set = (field: keyof RuleDraft) => (value: string) => onChange({ ...draft, [field]: value });
  const shown = (field: keyof RuleDraft) => (draft[field] === "" ? "" : (problems[field] ?? ""));
  return (
    <div className={styles.form}>
      <TextField label="Name of the rule" value={draft.name} onChange={set("name")} error={shown("name")} autoFocus />
      <BackendField value={draft.backend} onChange={set("backend")} error={shown("backend")} />
      <LabelField value={draft.labels} onChange={set("labels")} error={shown("labels")} />
      {(mayTrust || draft.uri !== "") && (
        <TextField
          label="From (optional)"
          value={draft.uri}
          onChange={set("uri")}
          placeholder="oci://registry.example/mine@sha256:…"
          hint="Empty: from a gallery, in any version. With a tag or digest, nothing else will do."
          isMono
        />
      )}
    </div>
  );
}

interface FieldProps {
  readonly value: string;
  readonly onChange: (value: string) => void;
  readonly error: string;
}

function BackendField({ value, onChange, error }: FieldProps) {
  const { data } = useOffers();
  const word = value.trim().toLowerCase();
  const names = (data?.items ?? []).map((offer) => offer.name).filter((name) => name !== value && name.includes(word));
  return (
    <>
      <TextField label="Backend" value={value} onChange={onChange} error={error} />
      <Chips
        label="Backends that galleries offer"
        chips={names.slice(0, 8).map((text) => ({ text }))}
        onChoose={onChange}
      />
    </>
  );
}

function LabelField({ value, onChange, error }: FieldProps) {
  const { items } = useTopic("nodes");
  const nodes = useMemo(() => choosable(items.values()), [items]);
  const chips = useMemo(() => tellingLabels(nodes, 8), [nodes]);
  const { labels, problem } = readLabels(value);
  const matched = problem === "" ? nodes.filter((node) => hasLabels(node.labels, labels)) : [];
  return (
    <>
      <TextField
        label="Nodes with these labels"
        value={value}
        onChange={onChange}
        error={error}
        placeholder="every node"
        hint="key=value; a node must have all of them. Empty: every node."
        isMono
      />
      <Chips
        label="Labels of this fleet"
        chips={chips}
        onChoose={(text) => onChange([value.trim(), text].filter(Boolean).join(" "))}
      />
      <p role="status" className={styles.quiet}>
        <strong>Matches {plural(matched.length, "node")} now</strong> {namesText(matched, 4)}
      </p>
    </>
  );
}
