/** The record: who did what to what, before → after; filtered by the server, newest first, and live at the top. */

import { useInfiniteQuery } from "@tanstack/react-query";
import { useMemo } from "react";

import { ask } from "../api/client";
import { useTopic } from "../live/live";
import { Button } from "../parts/button";
import { SearchField, TextField } from "../parts/fields";
import { useFilters } from "../parts/filters";
import { Section } from "../parts/page";
import { Empty, Failure, Loading } from "../parts/states";
import styles from "./access.module.css";
import { AuditEntry } from "./audit-entry";
import { type AuditQuery, auditPath, isMeant, joined, type RecordEntry } from "./audit-rows";

const PAGE = 100;

export function Audit() {
  const filters = useFilters();
  const query: AuditQuery = {
    actor: filters.get("actor"),
    kind: filters.get("kind"),
    node: filters.get("node"),
    text: filters.get("text"),
  };
  const { entries, error, isFirst, hasMore, more, retry } = useEntries(query);
  return (
    <>
      <search className={styles.auditFilters}>
        <SearchField label="Find in the record" value={query.text} onChange={(text) => filters.set("text", text)} />
        <TextField
          label="Who"
          value={query.actor}
          onChange={(actor) => filters.set("actor", actor)}
          placeholder="anybody"
        />
        <TextField
          label="What"
          value={query.kind}
          onChange={(kind) => filters.set("kind", kind)}
          placeholder="such as key or node.status"
        />
        <TextField
          label="Node"
          value={query.node}
          onChange={(node) => filters.set("node", node)}
          placeholder="any: name or id"
        />
      </search>
      <Section isBare>
        {error !== null && <Failure error={error} onRetry={retry} />}
        {error === null && isFirst && <Loading />}
        {error === null && !isFirst && entries.length === 0 && (
          <Empty command="corral events">Nothing of this is on the record.</Empty>
        )}
        <ol className={styles.entries}>
          {entries.map((entry) => (
            <AuditEntry key={entry.sequence} entry={entry} onFilter={filters.set} />
          ))}
        </ol>
        {hasMore && (
          <div className={styles.more}>
            <Button onPress={more}>Show older ones</Button>
          </div>
        )}
      </Section>
    </>
  );
}

/** Pages of the record that were asked for, and above them what has arrived since. */
function useEntries(query: AuditQuery) {
  const pages = useInfiniteQuery({
    queryKey: ["access", "audit", query],
    initialPageParam: null as number | null,
    queryFn: ({ pageParam }) => ask<RecordEntry[]>("GET", auditPath(query, PAGE, pageParam)),
    getNextPageParam: (page) => (page.length < PAGE ? undefined : Math.min(...page.map((entry) => entry.sequence))),
  });
  const live = useTopic("events");
  const arrived = useMemo(() => [...live.items.values()].filter((entry) => isMeant(entry, query)), [live.items, query]);
  return {
    entries: useMemo(() => joined(arrived, ...(pages.data?.pages ?? [])), [arrived, pages.data]),
    error: pages.error,
    isFirst: pages.data === undefined,
    hasMore: pages.hasNextPage,
    more: () => void pages.fetchNextPage(),
    retry: () => void pages.refetch(),
  };
}
