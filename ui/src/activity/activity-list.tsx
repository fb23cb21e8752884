/** Operations: what is under way by the live stream, and all of the past, filtered by the server. */

import { useInfiniteQuery } from "@tanstack/react-query";
import { useMemo } from "react";

import { ask, type Schema } from "../api/client";
import { useTopic } from "../live/live";
import type { OperationRow } from "../live/topics";
import { Button } from "../parts/button";
import { SearchField, Select } from "../parts/fields";
import { type Filters, useFilters } from "../parts/filters";
import { Page, Section } from "../parts/page";
import { Empty, Failure, Loading } from "../parts/states";
import { stateWord } from "../words.gen";
import styles from "./activity.module.css";
import { OperationTable } from "./operation-table";

const STATES = ["running", "waiting", "failed", "done", "cancelled"];
const VERBS = ["install", "upgrade", "delete", "pull", "remove", "stage"];
const PAGE_SIZE = 50;
const NAMES = ["state", "verb", "backend", "node", "asked_by", "text"] as const;

export function ActivityList() {
  const filters = useFilters();
  const { items, isWhole } = useTopic("operations");
  const open = useMemo(
    () => newestFirst([...items.values()].filter((one) => one.state === "running" || one.state === "waiting")),
    [items],
  );
  const isFiltered = NAMES.some((name) => filters.get(name) !== "");
  return (
    <Page title="Activity">
      {!isFiltered && isWhole && open.length > 0 && (
        <Section title={`Under way, ${open.length}`} isBare>
          <OperationTable operations={open} label="Operations under way" />
        </Section>
      )}
      <Section title={isFiltered ? "Found" : "Earlier"} actions={<FilterFields filters={filters} />} isBare>
        <History filters={filters} live={items} without={isFiltered ? [] : open} />
      </Section>
    </Page>
  );
}

function FilterFields({ filters }: { filters: Filters }) {
  const states = [
    { id: "", label: "Any state" },
    ...STATES.map((state) => ({ id: state, label: stateWord("operation", state).label })),
  ];
  const verbs = [{ id: "", label: "Any act" }, ...VERBS.map((verb) => ({ id: verb, label: verb }))];
  return (
    <>
      {(["backend", "node", "asked_by"] as const).map(
        (name) =>
          filters.get(name) !== "" && (
            <Button key={name} isSmall icon="close" onPress={() => filters.set(name, "")}>
              {name.replace("_", " ")} {filters.get(name)}
            </Button>
          ),
      )}
      <div className={styles.find}>
        <SearchField
          label="Find operations"
          placeholder="Backend, model, node"
          value={filters.get("text")}
          onChange={(text) => filters.set("text", text)}
        />
      </div>
      <div className={styles.choose}>
        <Select
          isLabelHidden
          label="State"
          choices={states}
          value={filters.get("state")}
          onChange={(state) => filters.set("state", state)}
        />
      </div>
      <div className={styles.choose}>
        <Select
          isLabelHidden
          label="Act"
          choices={verbs}
          value={filters.get("verb")}
          onChange={(verb) => filters.set("verb", verb)}
        />
      </div>
    </>
  );
}

interface HistoryProps {
  readonly filters: Filters;
  readonly live: ReadonlyMap<string, OperationRow>;
  /** Those that are listed already, as under way. */
  readonly without: readonly OperationRow[];
}

function History({ filters, live, without }: HistoryProps) {
  const query = new URLSearchParams({ limit: String(PAGE_SIZE) });
  for (const name of NAMES) if (filters.get(name) !== "") query.set(name, filters.get(name));
  const pages = useInfiniteQuery({
    queryKey: ["operations", query.toString(), [...live.keys()].length],
    queryFn: ({ pageParam }) => operations(query, pageParam),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    placeholderData: (before) => before,
  });
  if (pages.isPending) return <Loading lines={4} label="Loading operations" />;
  if (pages.isError) return <Failure error={pages.error} onRetry={() => void pages.refetch()} />;
  const found = pages.data.pages
    .flatMap((page) => page.items)
    .map((one) => live.get(one.id) ?? { ...one, worst: null })
    .filter((one) => !without.includes(one));
  if (found.length === 0) return <NothingYet isFiltered={query.size > 1} hasMore={without.length > 0} />;
  return (
    <>
      <OperationTable operations={found} label="Operations" />
      {pages.hasNextPage && (
        <div className={styles.more}>
          <Button isSmall isDisabled={pages.isFetchingNextPage} onPress={() => void pages.fetchNextPage()}>
            {pages.isFetchingNextPage ? "Loading…" : "Show older ones"}
          </Button>
        </div>
      )}
    </>
  );
}

function NothingYet({ isFiltered, hasMore }: { isFiltered: boolean; hasMore: boolean }) {
  if (hasMore) return <Empty>Nothing was asked before.</Empty>;
  if (isFiltered) return <Empty>No operation fits these filters.</Empty>;
  return (
    <Empty command="corral backends install NAME">
      Nothing was asked of this fleet yet. Installs, upgrades, deletes and pulls are listed here.
    </Empty>
  );
}

async function operations(query: URLSearchParams, cursor: string): Promise<Schema<"OperationPage">> {
  const asked = new URLSearchParams(query);
  if (cursor !== "") asked.set("cursor", cursor);
  return ask("GET", `/api/v1/operations?${asked}`);
}

function newestFirst(rows: OperationRow[]): OperationRow[] {
  return rows.sort((one, other) => other.accepted_at.localeCompare(one.accepted_at));
}
