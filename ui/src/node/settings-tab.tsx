/** What people may set on a node: labels by origin, slots, and the budget of video memory. */

import { type ReactNode, useState } from "react";

import { answer, api, ask, type Schema } from "../api/client";
import { sentenceOf } from "../api/errors";
import { useNodeExtra } from "../live/live";
import type { NodeRow } from "../live/topics";
import { Button, IconButton } from "../parts/button";
import { TextField } from "../parts/fields";
import { bytes } from "../parts/format";
import { Section } from "../parts/page";
import { Loading, Notice } from "../parts/states";
import { type Column, Table } from "../parts/table";
import { useMay } from "../shell/session";
import { type LabelRow, labelRows } from "./label-rows";
import styles from "./node.module.css";

export function SettingsTab({ node }: { node: NodeRow }) {
  const detail = useNodeExtra(node.id, "detail");
  if (detail === undefined) return <Loading label="Loading the settings" />;
  return (
    <>
      <Labels detail={detail} />
      <div className={styles.columns}>
        <Slots detail={detail} />
        <Budget detail={detail} />
      </div>
    </>
  );
}

type Detail = Schema<"NodeDetail">;

/** Runs one change at a time and keeps the server's sentence when it refuses. */
function useChange(): {
  readonly error: string;
  readonly isBusy: boolean;
  run(change: () => Promise<unknown>): Promise<boolean>;
} {
  const [error, setError] = useState("");
  const [isBusy, setBusy] = useState(false);
  const run = async (change: () => Promise<unknown>) => {
    setBusy(true);
    setError("");
    try {
      await change();
      return true;
    } catch (refusal) {
      setError(sentenceOf(refusal));
      return false;
    } finally {
      setBusy(false);
    }
  };
  return { error, isBusy, run };
}

function Labels({ detail }: { detail: Detail }) {
  const mayAct = useMay("nodes.act");
  const { error, isBusy, run } = useChange();
  const path = { id: detail.id };
  const remove = (key: string) =>
    run(() => answer(api.DELETE("/api/v1/nodes/{id}/labels/{key}", { params: { path: { ...path, key } } })));
  const set = (key: string, value: string) =>
    run(() => ask("PATCH", `/api/v1/nodes/${encodeURIComponent(detail.id)}/labels`, { [key]: value }));
  const rows = labelRows(detail);
  return (
    <Section title={`Labels, ${rows.length}`} isBare>
      {error !== "" && (
        <div className={styles.lead}>
          <Notice tone="red">{error}</Notice>
        </div>
      )}
      <Table label="Labels" rows={rows} columns={labelColumns(mayAct ? remove : null)} rowKey={(row) => row.key} />
      {mayAct && <NewLabel isBusy={isBusy} set={set} />}
    </Section>
  );
}

function labelColumns(remove: ((key: string) => Promise<boolean>) | null): Column<LabelRow>[] {
  return [
    { key: "key", title: "Label", width: "minmax(110px, 1fr)", cell: (row) => row.key },
    { key: "value", title: "Value", width: "minmax(90px, 1fr)", cell: (row) => row.value },
    {
      key: "origin",
      title: "Origin",
      width: "minmax(90px, 1fr)",
      cell: (row) => <span className={styles.quiet}>{row.origin}</span>,
    },
    {
      key: "remove",
      title: "",
      width: "36px",
      cell: (row) =>
        remove !== null &&
        row.canRemove && (
          <IconButton icon="close" label={`Remove the label ${row.key}`} onPress={() => void remove(row.key)} />
        ),
    },
  ];
}

function NewLabel({ isBusy, set }: { isBusy: boolean; set: (key: string, value: string) => Promise<boolean> }) {
  const [key, setKey] = useState("");
  const [value, setValue] = useState("");
  const add = async () => {
    if (await set(key.trim(), value.trim())) {
      setKey("");
      setValue("");
    }
  };
  return (
    <div className={`${styles.inline} ${styles.newLabel}`}>
      <TextField label="New label" placeholder="rack" value={key} onChange={setKey} />
      <TextField label="Value" placeholder="a" value={value} onChange={setValue} />
      <Button isDisabled={isBusy || key.trim() === ""} onPress={() => void add()}>
        Set the label
      </Button>
    </div>
  );
}

interface ValueProps {
  readonly title: string;
  readonly hint: ReactNode;
  readonly label: string;
  readonly now: string;
  readonly isSetByHand: boolean;
  readonly path: string;
  readonly read: (text: string) => unknown;
}

/** One value of a node that a person may set, and take back again. */
function ValueSection({ title, hint, label, now, isSetByHand, path, read }: ValueProps) {
  const mayAct = useMay("nodes.act");
  const { error, isBusy, run } = useChange();
  const [text, setText] = useState(isSetByHand ? now : "");
  return (
    <Section title={title}>
      <div className={styles.settings}>
        <p>
          <strong>{now || "none"}</strong>{" "}
          <span className={styles.quiet}>{isSetByHand ? "set by hand" : "as the worker says"}</span>
        </p>
        <p className={styles.quiet}>{hint}</p>
        {mayAct && (
          <div className={styles.inline}>
            <TextField label={label} value={text} onChange={setText} error={error} />
            <Button
              isDisabled={isBusy || text.trim() === ""}
              onPress={() => void run(() => ask("PUT", path, { value: read(text.trim()) }))}
            >
              Set
            </Button>
            {isSetByHand && (
              <Button isDisabled={isBusy} onPress={() => void run(() => ask("DELETE", path))}>
                As the worker says
              </Button>
            )}
          </div>
        )}
      </div>
    </Section>
  );
}

function Slots({ detail }: { detail: Detail }) {
  return (
    <ValueSection
      title="Slots"
      label="Replicas of one model"
      hint="How many replicas of the same model it may run at once. More than now are not started; those that run stay."
      now={String(detail.max_replicas_per_model)}
      isSetByHand={detail.max_replicas_per_model_manually_set}
      path={`/api/nodes/${encodeURIComponent(detail.id)}/max-replicas-per-model`}
      read={Number}
    />
  );
}

function Budget({ detail }: { detail: Detail }) {
  const effect = detail.vram_budget_bytes
    ? `${bytes(detail.vram_budget_bytes)} of ${bytes(detail.total_vram)}`
    : "all of it";
  return (
    <ValueSection
      title="Budget of video memory"
      label="Such as 80% or 20GiB"
      hint={`The most that models may use; now ${effect}. Models that need more are placed elsewhere; those that run stay.`}
      now={detail.vram_budget ?? ""}
      isSetByHand={detail.vram_budget_manually_set}
      path={`/api/nodes/${encodeURIComponent(detail.id)}/vram-budget`}
      read={String}
    />
  );
}
