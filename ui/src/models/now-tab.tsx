/** A model now: its loads, its replicas and where they are, what nodes say while it is not loaded, and its facts. */

import type { ReplicaRow } from "../live/topics";
import { bytes, count } from "../parts/format";
import { Fact, Facts, Section } from "../parts/page";
import { addressOf, PageLink } from "../parts/page-link";
import { Empty } from "../parts/states";
import { StatusPill } from "../parts/status-pill";
import { type Column, Table } from "../parts/table";
import { Age, Moment } from "../parts/time";
import type { LiveModel } from "./live-model";
import { newsOfRow, nothingRuns } from "./load-news";
import { LoadPanel } from "./load-panel";
import styles from "./now-tab.module.css";
import { modelPath } from "./place";
import type { Model } from "./queries";
import { ruleText } from "./scheduling-words";
import { WhyInShort } from "./why-tab";

export function NowTab({ model, live }: { model: Model; live: LiveModel }) {
  const isServed = live.state === "loaded" || live.state === "elsewhere" || live.state === "unusable";
  return (
    <div className={styles.columns}>
      <div className={styles.main}>
        {live.loads.map((load) => (
          <Section key={load.id} title={load.phase === "failed" ? "The last load failed" : "Load"}>
            <LoadPanel news={newsOfRow(load)} model={model.name} />
          </Section>
        ))}
        <Replicas model={model} live={live} />
        {!isServed && !model.is_disabled && (
          <Section title="Where it could run">
            <WhyInShort name={model.name} />
          </Section>
        )}
        <GoneReplicas model={model} live={live} />
      </div>
      <Section title="Facts">
        <ModelFacts model={model} />
      </Section>
    </div>
  );
}

function Replicas({ model, live }: { model: Model; live: LiveModel }) {
  return (
    <Section title="Replicas" isBare>
      {live.replicas.length === 0 ? (
        <Empty>{live.isWhole ? nothingRuns(model.is_disabled, live.loads) : "Waiting for news of the fleet."}</Empty>
      ) : (
        <Table label="Replicas" rows={live.replicas} columns={COLUMNS} rowKey={(replica) => replica.id} />
      )}
    </Section>
  );
}

const COLUMNS: readonly Column<ReplicaRow>[] = [
  {
    key: "node",
    title: "Node",
    width: "minmax(110px, 1.5fr)",
    cell: (replica) => (
      <PageLink href={addressOf.node(replica.node_id)}>
        {replica.node || replica.node_id}
        {replica.index > 0 ? ` #${replica.index}` : ""}
      </PageLink>
    ),
  },
  {
    key: "state",
    title: "State",
    width: "104px",
    cell: (replica) => <StatusPill subject="replica" state={replica.state} />,
  },
  {
    key: "flight",
    title: "In flight",
    width: "68px",
    isNumber: true,
    cell: (replica) => <span title="Requests under way there">{count(replica.in_flight)}</span>,
  },
  {
    key: "speed",
    title: "Tokens/s",
    width: "72px",
    isNumber: true,
    from: "tablet",
    cell: (replica) => replica.tokens_per_second?.toFixed(1) ?? "–",
  },
  { key: "memory", title: "Counts with", width: "minmax(130px, 1fr)", from: "wide", cell: memoryText },
  {
    key: "cards",
    title: "GPUs",
    width: "minmax(60px, 1fr)",
    from: "wide",
    cell: (replica) => replica.cards.join(", ") || "–",
  },
  { key: "why", title: "Wanted", width: "minmax(70px, 1fr)", from: "tablet", cell: (replica) => replica.why || "–" },
  { key: "since", title: "Since", width: "84px", from: "tablet", cell: (replica) => <Age at={replica.changed_at} /> },
];

function memoryText(replica: ReplicaRow): string {
  const parts = [replica.vram ? `${bytes(replica.vram)} VRAM` : "", replica.ram ? `${bytes(replica.ram)} RAM` : ""];
  return parts.filter((part) => part !== "").join(", ") || "not known";
}

/** Replicas of the last day that are gone, with their reasons. */
function GoneReplicas({ model, live }: { model: Model; live: LiveModel }) {
  const living = new Set(live.replicas.map((replica) => replica.id));
  const gone = model.replicas.filter((replica) => ENDED.has(replica.state) && !living.has(replica.id));
  if (gone.length === 0) return null;
  return (
    <Section title="Gone in the last day" isBare>
      <ul className={styles.gone}>
        {gone.map((replica) => (
          <li key={replica.id} className={styles.goneRow}>
            <StatusPill subject="replica" state={replica.state} />
            <span className={styles.goneWhat}>
              {replica.node || replica.node_id}
              {replica.reason !== "" && <span className={styles.reason}>{replica.reason}</span>}
            </span>
            <span className={styles.reason}>
              <Age at={replica.changed_at} />
            </span>
          </li>
        ))}
      </ul>
    </Section>
  );
}

const ENDED = new Set(["idle", "failed", "lost"]);

function ModelFacts({ model }: { model: Model }) {
  const { origin, memory, scheduling } = model;
  return (
    <Facts>
      {model.alias_of !== "" && (
        <Fact name="Alias of">
          <PageLink href={modelPath(model.alias_of)}>{model.alias_of}</PageLink>
        </Fact>
      )}
      <TextFact name="Backend" text={model.backend} />
      <TextFact name="Weights" text={model.model} />
      <TextFact name="Size" text={model.bytes ? bytes(model.bytes) : ""} />
      <TextFact name="Memory" text={memory === null ? "" : estimateText(memory)} />
      <TextFact name="Replicas" text={scheduling === null ? "when asked" : ruleText(scheduling)} />
      <TextFact name="Problem" text={scheduling?.problem ?? ""} />
      <TextFact name="File" text={model.source} />
      <TextFact
        name="From"
        text={origin === null || origin.reference === model.source ? "" : origin.resolved || origin.reference}
      />
      <TextFact name="Gallery" text={origin?.gallery ?? ""} />
      <TextFact name="Licence" text={origin?.licence ?? ""} />
      <TextFact name="Revision" text={model.revision.slice(0, 12)} />
      {model.number > 0 && (
        <Fact name="Changed">
          <Moment at={model.changed_at} />
          {model.changed_by === "" ? "" : ` by ${model.changed_by}`}, change {model.number}
        </Fact>
      )}
      {model.engines.map((engine) => (
        <Fact key={engine.name} name="Engine">
          {engine.name}, elsewhere <StatusPill subject="engine" state={engine.state} />
        </Fact>
      ))}
      {model.warnings.map((warning) => (
        <TextFact key={warning} name="Warning" text={warning} />
      ))}
    </Facts>
  );
}

/** A fact that is left out where there is nothing to say. */
function TextFact({ name, text }: { name: string; text: string }) {
  return text === "" ? null : <Fact name={name}>{text}</Fact>;
}

function estimateText(memory: NonNullable<Model["memory"]>): string {
  if (!memory.ram) return "";
  const onGpu = memory.vram ? `; with a GPU ${bytes(memory.vram)} on it` : "";
  const beside = onGpu !== "" && memory.ram_beside_gpu ? ` and ${bytes(memory.ram_beside_gpu)} beside` : "";
  return `about ${bytes(memory.ram)}${onGpu}${beside} (by ${memory.source})`;
}
