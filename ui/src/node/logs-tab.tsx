/** What the engines of a node print, as it comes: searched, wrapped, held still, downloaded. Shown as plain text. */

import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";

import { answer, api } from "../api/client";
import type { NodeRow } from "../live/topics";
import { Button } from "../parts/button";
import { classes } from "../parts/classes";
import { Checkbox, SearchField, Select } from "../parts/fields";
import { useFilters } from "../parts/filters";
import { Section } from "../parts/page";
import { Empty, Failure, Loading } from "../parts/states";
import { type LogEntry, type Severity, severityOf, textOf, timeOf } from "./log-lines";
import styles from "./node.module.css";
import { useLog } from "./use-log";

export function LogsTab({ node }: { node: NodeRow }) {
  const filters = useFilters();
  const names = useQuery({
    queryKey: ["logs", node.id],
    queryFn: () => answer(api.GET("/api/v1/nodes/{id}/logs", { params: { path: { id: node.id } } })),
  });
  if (names.isPending) return <Loading label="Asking which logs there are" />;
  if (names.isError)
    return (
      <Failure
        error={names.error}
        onRetry={() => void names.refetch()}
        works="Everything else about this node is on the other tabs."
      />
    );
  const known = names.data;
  const chosen = known.includes(filters.get("log")) ? filters.get("log") : known[0];
  if (chosen === undefined) return <Empty>No engine has printed anything on this node yet.</Empty>;
  return <Log key={chosen} node={node} names={known} chosen={chosen} />;
}

function Log({ node, names, chosen }: { node: NodeRow; names: readonly string[]; chosen: string }) {
  const filters = useFilters();
  const search = filters.get("search");
  const [isWrapped, setWrapped] = useState(true);
  const [isHeld, setHeld] = useState(false);
  const log = useLog(node.id, chosen, search, isHeld);
  return (
    <Section
      title="Log"
      isBare
      actions={
        <div className={styles.logBar}>
          <div className={styles.logChoice}>
            <Select
              isLabelHidden
              label="Log of"
              choices={names.map((name) => ({ id: name, label: name }))}
              value={chosen}
              onChange={(name) => filters.set("log", name)}
            />
          </div>
          <SearchField label="Find in the log" value={search} onChange={(text) => filters.set("search", text)} />
          <Checkbox isSelected={isWrapped} onChange={setWrapped}>
            Wrap
          </Checkbox>
          <Button isSmall onPress={() => setHeld(!isHeld)}>
            {isHeld ? "Go on" : "Hold still"}
          </Button>
          <Button isSmall icon="download" onPress={() => download(`${node.name}-${chosen}.log`, log.entries)}>
            Save
          </Button>
        </div>
      }
    >
      {log.error !== null && <Failure error={log.error} onRetry={log.retry} />}
      <Lines entries={log.entries} isWrapped={isWrapped} isHeld={isHeld} label={`Log of ${chosen} on ${node.name}`} />
    </Section>
  );
}

interface LinesProps {
  readonly entries: readonly LogEntry[];
  readonly isWrapped: boolean;
  readonly isHeld: boolean;
  readonly label: string;
}

function Lines({ entries, isWrapped, isHeld, label }: LinesProps) {
  const place = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  // biome-ignore lint/correctness/useExhaustiveDependencies: new lines move the view, nothing else does
  useEffect(() => {
    if (place.current !== null && isAtEnd.current && !isHeld) place.current.scrollTop = place.current.scrollHeight;
  }, [entries]);
  const noteScroll = () => {
    const element = place.current;
    if (element !== null) isAtEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < 40;
  };
  return (
    <div
      ref={place}
      className={classes(styles.log, isWrapped && styles.wrap)}
      role="log"
      aria-label={label}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
      tabIndex={0}
      onScroll={noteScroll}
    >
      {entries.map((entry) => (
        <LogRow key={entry.number} entry={entry} />
      ))}
    </div>
  );
}

const SEVERE: Readonly<Record<Severity, string | undefined>> = {
  error: styles.logError,
  warning: styles.logWarning,
  plain: undefined,
};

function LogRow({ entry }: { entry: LogEntry }) {
  if (entry.isGap) return <div className={styles.gap}>{entry.text}</div>;
  return (
    <div className={classes(styles.logLine, SEVERE[severityOf(entry.text)])}>
      <span className={styles.logTime}>{timeOf(entry.at)}</span>
      <span>{textOf(entry)}</span>
    </div>
  );
}

function download(name: string, entries: readonly LogEntry[]): void {
  const text = entries.map((entry) => `${entry.at} ${entry.stream} ${textOf(entry)}\n`).join("");
  const address = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  URL.revokeObjectURL(address);
}
