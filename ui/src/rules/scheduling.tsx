/** Rules of scheduling: how many replicas each model has, where, and what keeps the fleet from it. */

import { useMemo, useState } from "react";

import { Button } from "../parts/button";
import { useFilters } from "../parts/filters";
import { ActMenu } from "../parts/menu";
import { Section } from "../parts/page";
import { PageLink } from "../parts/page-link";
import { Empty, Failure, Loading } from "../parts/states";
import { byNumber, byText, type Column, Table } from "../parts/table";
import { useMay } from "../shell/session";
import { useScheduling } from "./queries";
import styles from "./rules.module.css";
import { SchedulingChange } from "./scheduling-change";
import { countsText, idleText, isSatisfied, placesText, type SchedulingView } from "./scheduling-draft";
import { SchedulingRemoval } from "./scheduling-removal";

type Opened =
  | { readonly kind: "put"; readonly before: SchedulingView | null; readonly model: string }
  | { readonly kind: "remove"; readonly before: SchedulingView };

export function Scheduling() {
  const { data, error, refetch } = useScheduling(true);
  const may = useMay("scheduling.act");
  const filters = useFilters();
  const [opened, setOpened] = useState<Opened | null>(null);
  const columns = useMemo(() => columnsOf(may ? setOpened : null), [may]);
  if (error !== null) return <Failure error={error} onRetry={() => void refetch()} />;
  if (data === undefined) return <Loading />;
  const close = () => setOpened(null);
  return (
    <>
      <div className={styles.head}>
        <p className={styles.quiet}>Without a rule a model is loaded when somebody asks, wherever there is room.</p>
        {may && (
          <Button
            look="primary"
            icon="plus"
            onPress={() => setOpened({ kind: "put", before: null, model: filters.get("model") })}
          >
            New rule
          </Button>
        )}
      </div>
      <Section isBare>
        {data.items.length === 0 ? (
          <Empty command="corral models scale MODEL 2">No model has a rule: each is loaded when somebody asks.</Empty>
        ) : (
          <Table
            label="Rules of scheduling"
            rows={data.items}
            columns={columns}
            rowKey={(rule) => rule.model}
            rowHeight={48}
            isMarked={(rule) => rule.model === filters.get("model")}
          />
        )}
      </Section>
      {opened?.kind === "put" && (
        <SchedulingChange before={opened.before} model={opened.model} rules={data.items} onClose={close} />
      )}
      {opened?.kind === "remove" && <SchedulingRemoval rule={opened.before} onClose={close} />}
    </>
  );
}

function columnsOf(open: ((opened: Opened) => void) | null): readonly Column<SchedulingView>[] {
  const columns: Column<SchedulingView>[] = [
    {
      key: "model",
      title: "Model",
      width: "minmax(110px, 1.6fr)",
      sort: byText((rule) => rule.model),
      cell: (rule) => <PageLink href={`/models/${encodeURIComponent(rule.model)}`}>{rule.model}</PageLink>,
    },
    { key: "wants", title: "Replicas", width: "minmax(96px, 1fr)", cell: (rule) => <Wants rule={rule} /> },
    {
      key: "loaded",
      title: "Loaded",
      width: "72px",
      isNumber: true,
      sort: byNumber((rule) => rule.loaded),
      cell: (rule) => <Loaded rule={rule} />,
    },
    { key: "on", title: "On", width: "minmax(90px, 1.4fr)", from: "tablet", cell: (rule) => placesText(rule) },
    {
      key: "idle",
      title: "Unloaded when idle",
      width: "130px",
      from: "wide",
      cell: (rule) => idleText(rule.idle_seconds),
    },
    {
      key: "from",
      title: "From",
      width: "minmax(110px, 1fr)",
      from: "wide",
      cell: (rule) => <span className={styles.quiet}>{`${rule.source} by ${rule.updated_by}`}</span>,
    },
    {
      key: "problem",
      title: "State",
      width: "minmax(100px, 2fr)",
      from: "tablet",
      cell: (rule) => <Standing rule={rule} />,
    },
  ];
  if (open !== null) {
    columns.push({
      key: "acts",
      title: "",
      width: "48px",
      isNumber: true,
      cell: (rule) => <RuleActs rule={rule} open={open} />,
    });
  }
  return columns;
}

function Wants({ rule }: { rule: SchedulingView }) {
  return <span>{countsText(rule)}</span>;
}

function Loaded({ rule }: { rule: SchedulingView }) {
  return (
    <span title={`${rule.loaded} loaded, ${rule.loading} on their way`}>
      {rule.loaded}
      {rule.loading > 0 && <span className={styles.quiet}> +{rule.loading}</span>}
    </span>
  );
}

function Standing({ rule }: { rule: SchedulingView }) {
  if (rule.problem !== "") {
    return (
      <span className={styles.problem} title={rule.problem}>
        <span aria-hidden="true">✕ </span>
        {rule.problem}
      </span>
    );
  }
  return <span>{isSatisfied(rule) ? "as wanted" : "under way"}</span>;
}

function RuleActs({ rule, open }: { rule: SchedulingView; open: (opened: Opened) => void }) {
  return (
    <ActMenu
      label={`Acts on the rule of ${rule.model}`}
      acts={[
        { id: "edit", label: "Change…", onAct: () => open({ kind: "put", before: rule, model: rule.model }) },
        { id: "remove", label: "Delete…", isDangerous: true, onAct: () => open({ kind: "remove", before: rule }) },
      ]}
    />
  );
}
