/** The fleet in one line. Every count of nodes is a filter. */

import { useSummary } from "../live/live";
import { MemoryBar } from "../parts/bar";
import { classes } from "../parts/classes";
import { useFilters } from "../parts/filters";
import { count, plural } from "../parts/format";
import { PageLink } from "../parts/page-link";
import { Loading } from "../parts/states";
import { Glyph } from "../parts/status-pill";
import { stateWord } from "../words.gen";
import styles from "./fleet.module.css";

const STATUSES = ["healthy", "unhealthy", "offline", "draining", "pending"];

export function Pulse() {
  const summary = useSummary();
  if (summary === undefined) return <Loading lines={1} label="Loading the pulse of the fleet" />;
  const here = STATUSES.filter((status) => summary.nodes[status]);
  const waiting = summary.waiting > 0 ? `, ${count(summary.waiting)} waiting` : "";
  return (
    <section className={styles.pulse} aria-label="Pulse of the fleet">
      <div className={styles.counts}>
        {here.map((status) => (
          <StatusFilter key={status} status={status} number={summary.nodes[status] ?? 0} />
        ))}
        {here.length === 0 && <span className={styles.quiet}>No nodes</span>}
      </div>
      <div className={styles.serving}>
        <PageLink href="/models">
          <strong>{count(summary.loaded_models)}</strong> of {plural(summary.models, "model")} loaded
        </PageLink>
        <span>
          <strong>{count(summary.replicas)}</strong> {summary.replicas === 1 ? "replica" : "replicas"}
        </span>
        <span>
          <strong>{count(summary.in_flight)}</strong> in flight{waiting}
        </span>
      </div>
      <div className={styles.memory}>
        {summary.vram.total ? <MemoryLine name="VRAM" share={summary.vram} /> : null}
        <MemoryLine name="RAM" share={summary.ram} />
      </div>
    </section>
  );
}

function StatusFilter({ status, number }: { status: string; number: number }) {
  const filters = useFilters();
  const isChosen = filters.get("status") === status;
  const word = stateWord("node", status);
  return (
    <button
      type="button"
      className={classes(styles.count, isChosen && styles.chosen)}
      aria-pressed={isChosen}
      title={word.tooltip}
      onClick={() => filters.set("status", isChosen ? "" : status)}
    >
      <Glyph word={word} />
      <strong>{count(number)}</strong> {word.label.toLowerCase()}
    </button>
  );
}

type Memory = { readonly total?: number | null; readonly used?: number | null; readonly reserved?: number | null };

function MemoryLine({ name, share }: { name: string; share: Memory }) {
  return (
    <div className={styles.memoryLine}>
      <span className={styles.quiet}>{name}</span>
      <MemoryBar
        isLine
        name={name}
        share={{ total: share.total ?? null, used: share.used ?? null, reserved: share.reserved ?? null }}
      />
    </div>
  );
}
