/** What is not as asked: wanted, has, since when, why, and the operation that mends it. */

import { useMemo } from "react";

import { Button } from "../parts/button";
import { SearchField } from "../parts/fields";
import { useFilters } from "../parts/filters";
import { plural } from "../parts/format";
import { Section } from "../parts/page";
import { addressOf, PageLink } from "../parts/page-link";
import { Empty, Failure, Loading } from "../parts/states";
import { byText, type Column, Table } from "../parts/table";
import { Age } from "../parts/time";
import { useMay } from "../shell/session";
import { type Choice, choiceOfAsk, type OperationAsk, VERBS } from "./acts";
import styles from "./backends.module.css";
import { type DriftItem, driftKey, findDrift, fixesOf } from "./drift-rows";
import { useDrift } from "./queries";

type Fix = (choice: Choice) => void;

export function Drift({ onFix }: { onFix: Fix }) {
  const { data, error, refetch } = useDrift();
  const filters = useFilters();
  const may = useMay("backends.act");
  const columns = useMemo(() => columnsOf(may ? onFix : null), [may, onFix]);
  if (error !== null) return <Failure error={error} onRetry={() => void refetch()} />;
  if (data === undefined) return <Loading />;
  const query = { text: filters.get("q"), node: filters.get("node"), backend: filters.get("backend") };
  const items = findDrift(data.items, query);
  return (
    <>
      <search className={styles.filters}>
        <SearchField label="Find drift" value={query.text} onChange={(text) => filters.set("q", text)} />
        <Narrowed query={query} />
        {may && <FixAll items={items} onFix={onFix} />}
      </search>
      <Section isBare>
        {items.length === 0 ? (
          <Empty command="corral backends drift">
            {data.items.length === 0 ? "Everything is as it was asked for." : "Nothing of this is not as asked."}
          </Empty>
        ) : (
          <Table label="What is not as asked" rows={items} columns={columns} rowKey={driftKey} rowHeight={44} />
        )}
      </Section>
    </>
  );
}

function Narrowed({ query }: { query: { readonly node: string; readonly backend: string } }) {
  const filters = useFilters();
  if (query.node === "" && query.backend === "") return null;
  const clear = () => filters.set(query.node === "" ? "backend" : "node", "");
  return (
    <Button isSmall look="quiet" icon="close" onPress={clear}>
      {query.node === "" ? `Only ${query.backend}` : "Only one node"}
    </Button>
  );
}

/** Buttons that are shown for operations over several nodes; with more, people mend row by row. */
const MOST_FIXES = 3;

function FixAll({ items, onFix }: { items: readonly DriftItem[]; onFix: Fix }) {
  const fixes = fixesOf(items).filter((fix) => fix.nodes.length > 1);
  if (fixes.length === 0 || fixes.length > MOST_FIXES) return null;
  return fixes.map((fix) => (
    <Button key={`${fix.verb} ${fix.backend}`} onPress={() => onFix(choiceOfAsk(fix))}>
      {fixLabel(fix)}
    </Button>
  ));
}

function fixLabel(fix: OperationAsk): string {
  const verb = VERBS[fix.verb as keyof typeof VERBS] ?? fix.verb;
  return `${verb} ${fix.backend || fix.name} on ${plural(fix.nodes.length, "node")}…`;
}

function columnsOf(onFix: Fix | null): readonly Column<DriftItem>[] {
  const columns: Column<DriftItem>[] = [
    {
      key: "node",
      title: "Node",
      width: "minmax(90px, 0.8fr)",
      sort: byText((item) => item.node_name),
      cell: (item) => <PageLink href={`/nodes/${encodeURIComponent(item.node_id)}`}>{item.node_name}</PageLink>,
    },
    {
      key: "backend",
      title: "Backend",
      width: "minmax(72px, 0.8fr)",
      sort: byText((item) => item.backend),
      cell: (item) => item.backend,
    },
    { key: "wanted", title: "Wanted", width: "minmax(80px, 1.8fr)", cell: (item) => <Wanted item={item} /> },
    { key: "has", title: "Has", width: "minmax(80px, 1fr)", from: "tablet", cell: (item) => item.has || "–" },
    {
      key: "since",
      title: "Since",
      width: "84px",
      from: "tablet",
      cell: (item) => (item.since === null ? "–" : <Age at={item.since} />),
    },
    { key: "why", title: "Why", width: "minmax(120px, 2.6fr)", from: "tablet", cell: (item) => <Why item={item} /> },
  ];
  if (onFix !== null) {
    columns.push({
      key: "fix",
      title: "",
      width: "92px",
      isNumber: true,
      cell: (item) => <FixButton item={item} onFix={onFix} />,
    });
  }
  return columns;
}

function Wanted({ item }: { item: DriftItem }) {
  return (
    <span className={styles.twoLines}>
      <span className={styles.oneLine} title={item.wanted}>
        {item.wanted.replace("digest sha256:", "digest ")}
      </span>
      {item.rule !== "" && (
        <span className={styles.quietLine}>
          by the rule <PageLink href={`/rules?rule=${encodeURIComponent(item.rule)}`}>{item.rule}</PageLink>
        </span>
      )}
    </span>
  );
}

function Why({ item }: { item: DriftItem }) {
  return (
    <span className={styles.twoLines} title={item.why}>
      <span className={styles.oneLine}>{item.why || "nobody knows"}</span>
      {item.operation_id ? (
        <span className={styles.quietLine}>
          <PageLink href={addressOf.operation(item.operation_id)}>Its operation</PageLink>
        </span>
      ) : null}
    </span>
  );
}

/** The button names the act; the server's label, which names backend and node too, is for those who do not see the row. */
function FixButton({ item, onFix }: { item: DriftItem; onFix: Fix }) {
  const { fix } = item;
  if (fix === null)
    return (
      <span className={styles.quiet} title="The operation that asked for it goes on trying.">
        tried again
      </span>
    );
  const choice = choiceOfAsk(fix.operation);
  return (
    <Button isSmall aria-label={fix.label} onPress={() => onFix(choice)}>
      {VERBS[choice.verb]}…
    </Button>
  );
}
