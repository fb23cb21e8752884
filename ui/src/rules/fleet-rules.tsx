/** Fleet rules: which backend nodes with certain labels shall have, and how far they are. */

import { useMemo, useState } from "react";

import { Button } from "../parts/button";
import { useFilters } from "../parts/filters";
import { labelText } from "../parts/labels";
import { Section } from "../parts/page";
import { Empty, Failure, Loading } from "../parts/states";
import { byNumber, byText, type Column, Table } from "../parts/table";
import { Age } from "../parts/time";
import { useMay } from "../shell/session";
import { useFleetRules } from "./queries";
import { RuleChange } from "./rule-change";
import { RulePanel } from "./rule-panel";
import { draftOf, NEW_RULE, type RuleEdit, type RuleSet, type RuleView, satisfactionOf } from "./rule-set";
import styles from "./rules.module.css";

export function FleetRules() {
  const { data, error, refetch } = useFleetRules(true);
  const may = useMay("rules.act");
  const [edit, setEdit] = useState<{ readonly edit: RuleEdit; readonly base: RuleSet } | null>(null);
  if (error !== null) return <Failure error={error} onRetry={() => void refetch()} />;
  if (data === undefined) return <Loading />;
  const begin = (next: RuleEdit) => setEdit({ edit: next, base: data });
  return (
    <>
      <div className={styles.head}>
        <p className={styles.quiet}>
          A rule stays in force: nodes that join later, come back or get the label get the backend as well.
        </p>
        {may && (
          <Button look="primary" icon="plus" onPress={() => begin({ kind: "put", was: "", draft: NEW_RULE })}>
            New rule
          </Button>
        )}
      </div>
      <RuleList rules={data.items} begin={may ? begin : null} />
      {edit !== null && (
        <RuleChange key={edit.base.revision} start={edit.edit} base={edit.base} onClose={() => setEdit(null)} />
      )}
    </>
  );
}

function RuleList({ rules, begin }: { rules: readonly RuleView[]; begin: ((edit: RuleEdit) => void) | null }) {
  const filters = useFilters();
  const { set } = filters;
  const columns = useMemo(() => columnsOf((rule) => set("rule", rule.name)), [set]);
  const opened = rules.find((rule) => rule.name === filters.get("rule"));
  return (
    <div className={styles.beside}>
      <Section isBare>
        {rules.length === 0 ? (
          <Empty command="corral backends apply -f FILE">
            There are no fleet rules: each backend is where somebody put it.
          </Empty>
        ) : (
          <Table
            label="Fleet rules"
            rows={rules}
            columns={columns}
            rowKey={(rule) => rule.name}
            rowHeight={44}
            onRow={(rule) => set("rule", rule.name)}
            isMarked={(rule) => rule.name === opened?.name}
          />
        )}
      </Section>
      {opened !== undefined && (
        <RulePanel
          rule={opened}
          onClose={() => set("rule", "")}
          {...(begin === null
            ? {}
            : {
                onEdit: () => begin({ kind: "put", was: opened.name, draft: draftOf(opened) }),
                onRemove: () => begin({ kind: "remove", was: opened.name, deletes: false }),
              })}
        />
      )}
    </div>
  );
}

function columnsOf(open: (rule: RuleView) => void): readonly Column<RuleView>[] {
  return [
    {
      key: "name",
      title: "Rule",
      width: "minmax(110px, 1.4fr)",
      sort: byText((rule) => rule.name),
      cell: (rule) => (
        <button type="button" className={styles.nameButton} onClick={() => open(rule)}>
          {rule.name}
        </button>
      ),
    },
    {
      key: "backend",
      title: "Backend",
      width: "minmax(90px, 1fr)",
      sort: byText((rule) => rule.backend),
      cell: (rule) => rule.backend,
    },
    {
      key: "on",
      title: "On",
      width: "minmax(90px, 1.4fr)",
      from: "tablet",
      cell: (rule) => labelText(rule.labels) || "every node",
    },
    {
      key: "satisfied",
      title: "Satisfied",
      width: "minmax(110px, 1.4fr)",
      sort: byNumber((rule) => satisfactionOf(rule).satisfied),
      cell: (rule) => <Satisfied rule={rule} />,
    },
    {
      key: "made",
      title: "Made",
      width: "minmax(120px, 1fr)",
      from: "wide",
      cell: (rule) => (
        <span className={styles.quiet}>
          <Age at={rule.made_at} /> by {rule.made_by}
        </span>
      ),
    },
  ];
}

/** "36 of 40 nodes", and what keeps the rest. */
export function Satisfied({ rule }: { rule: RuleView }) {
  const { matches, satisfied, stuck, underWay } = satisfactionOf(rule);
  const rest = [stuck > 0 ? `${stuck} stuck` : "", underWay > 0 ? `${underWay} under way or away` : ""].filter(Boolean);
  return (
    <span className={styles.twoLines}>
      <span>
        {matches === 0 ? "matches no node" : `${satisfied} of ${matches} ${matches === 1 ? "node" : "nodes"}`}
      </span>
      {(rest.length > 0 || rule.doubt !== "") && (
        <span className={stuck > 0 ? styles.stuck : styles.quietLine}>{rest.join(", ") || rule.doubt}</span>
      )}
    </span>
  );
}
