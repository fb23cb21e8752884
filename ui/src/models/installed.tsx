/** The models of the fleet: state, where they run, how busy they are. */

import { useMemo, useState } from "react";

import type { Schema } from "../api/client";
import { useTopic } from "../live/live";
import type { LoadRow, ReplicaRow } from "../live/topics";
import { Button, LinkButton } from "../parts/button";
import { SearchField, Select } from "../parts/fields";
import { useFilters } from "../parts/filters";
import { bytes, count, firstOfNodes } from "../parts/format";
import { Section } from "../parts/page";
import { addressOf, PageLink } from "../parts/page-link";
import { Empty, Failure, Loading } from "../parts/states";
import { WordPill } from "../parts/status-pill";
import { byNumber, byText, type Column, Table } from "../parts/table";
import { useMay } from "../shell/session";
import styles from "./installed.module.css";
import { newsOfRow, newsSentence } from "./load-news";
import { byModel, furthestFirst, isShownBy, modelWord, servingName, stateOf } from "./model-state";
import { modelPath } from "./place";
import { PullDialog } from "./pull-dialog";
import { type Model, useModels } from "./queries";

interface Row {
  readonly model: Model;
  readonly state: string;
  readonly replicas: readonly ReplicaRow[];
  readonly load: LoadRow | undefined;
}

const STATES = [
  { id: "all", label: "All states" },
  { id: "loaded", label: "Loaded" },
  { id: "loading", label: "Loading or waiting" },
  { id: "failing", label: "Failed, unusable or not reachable" },
  { id: "cold", label: "Cold" },
  { id: "elsewhere", label: "Elsewhere" },
  { id: "disabled", label: "Disabled" },
];

export function Installed() {
  const models = useModels();
  const rows = useRows(models.data?.items);
  const filters = useFilters();
  const [term, state] = [filters.get("q").toLowerCase(), filters.get("state") || "all"];
  if (models.error !== null) return <Failure error={models.error} onRetry={() => void models.refetch()} />;
  if (models.data === undefined) return <Loading label="Loading models" />;
  if (rows.length === 0 && models.data.offered.length === 0 && models.data.problems.length === 0) return <NoModels />;
  const shown = rows.filter((row) => isShownBy(state, row.state) && mentions(row.model, term));
  return (
    <>
      <div className={styles.filters}>
        <SearchField
          label="Filter by name or backend"
          value={filters.get("q")}
          onChange={(text) => filters.set("q", text)}
        />
        <Select
          label="State"
          isLabelHidden
          choices={STATES}
          value={STATES.some(({ id }) => id === state) ? state : "all"}
          onChange={(next) => filters.set("state", next === "all" ? "" : next)}
        />
        <span className={styles.count}>
          {count(shown.length)} of {count(rows.length)}
        </span>
      </div>
      <Section isBare>
        {shown.length === 0 ? (
          <Empty>No model is like that.</Empty>
        ) : (
          <Table
            label="Models"
            rows={shown}
            columns={COLUMNS}
            rowKey={(row) => row.model.name}
            order={{ key: "name", isDescending: false }}
          />
        )}
      </Section>
      <PassedOver problems={models.data.problems} />
      <Offered files={models.data.offered} />
    </>
  );
}

function useRows(models: readonly Model[] | undefined): Row[] {
  const replicas = useTopic("replicas").items;
  const loads = useTopic("loads").items;
  return useMemo(() => {
    const [replicasOf, loadsOf] = [byModel(replicas.values()), byModel(loads.values())];
    return (models ?? []).map((model) => {
      const own = replicasOf.get(servingName(model)) ?? [];
      const ownLoads = loadsOf.get(servingName(model)) ?? [];
      return { model, state: stateOf(model, own, ownLoads), replicas: own, load: furthestFirst(ownLoads)[0] };
    });
  }, [models, replicas, loads]);
}

function mentions(model: Model, term: string): boolean {
  return [model.name, model.backend, model.alias_of].some((text) => text.toLowerCase().includes(term));
}

const COLUMNS: readonly Column<Row>[] = [
  {
    key: "name",
    title: "Name",
    width: "minmax(140px, 2fr)",
    sort: byText((row) => row.model.name),
    cell: ({ model }) => (
      <PageLink href={modelPath(model.name)} className={styles.name ?? ""}>
        {model.name}
      </PageLink>
    ),
  },
  {
    key: "state",
    title: "State",
    width: "112px",
    sort: byText((row) => row.state),
    cell: (row) => <WordPill word={modelWord(row.state)} />,
  },
  { key: "where", title: "Where", width: "minmax(160px, 3fr)", from: "tablet", cell: (row) => <Where row={row} /> },
  {
    key: "flight",
    title: "In flight",
    width: "72px",
    isNumber: true,
    from: "tablet",
    sort: byNumber((row) => inFlight(row)),
    cell: (row) => (row.replicas.length === 0 ? "–" : count(inFlight(row))),
  },
  {
    key: "speed",
    title: "Tokens/s",
    width: "80px",
    isNumber: true,
    from: "wide",
    sort: byNumber((row) => tokensPerSecond(row)),
    cell: (row) => tokensPerSecond(row)?.toFixed(1) ?? "–",
  },
  {
    key: "size",
    title: "Size",
    width: "84px",
    isNumber: true,
    from: "tablet",
    sort: byNumber((row) => row.model.bytes),
    cell: ({ model }) => (model.bytes ? bytes(model.bytes) : "–"),
  },
  {
    key: "backend",
    title: "Backend",
    width: "minmax(90px, 1fr)",
    from: "wide",
    sort: byText((row) => row.model.backend),
    cell: ({ model }) => model.backend || (model.alias_of ? `→ ${model.alias_of}` : "–"),
  },
];

/** The nodes that have it, or what its load does. */
function Where({ row }: { row: Row }) {
  const { model, replicas, load } = row;
  if (row.state !== "loaded" && load !== undefined) {
    const news = newsOfRow(load);
    const text = news.message === "" ? newsSentence(news) : news.message;
    return (
      <span className={styles.quiet} title={text}>
        {firstOfNodes(text)}
      </span>
    );
  }
  const loaded = replicas.filter((replica) => replica.state === "loaded");
  const engines = model.engines.map((engine) => `${engine.name} (elsewhere)`);
  if (loaded.length === 0) return engines.join(", ") || "–";
  return (
    <span>
      {loaded.slice(0, MOST_PLACES).map((replica, index) => (
        <span key={replica.id}>
          {index > 0 && ", "}
          <PageLink href={addressOf.node(replica.node_id)}>{replica.node}</PageLink>
        </span>
      ))}
      {loaded.length > MOST_PLACES && ` and ${loaded.length - MOST_PLACES} more`}
      {engines.length > 0 && `, ${engines.join(", ")}`}
    </span>
  );
}

const MOST_PLACES = 4;

/** Requests under way at all replicas; null while nobody knows one of them. */
function inFlight({ replicas }: Row): number | null {
  return replicas.reduce<number | null>(
    (sum, replica) => (sum === null || replica.in_flight === null ? null : sum + replica.in_flight),
    0,
  );
}

function tokensPerSecond({ replicas }: Row): number | null {
  const speeds = replicas.flatMap((replica) => replica.tokens_per_second ?? []);
  return speeds.length === 0 ? null : speeds.reduce((sum, speed) => sum + speed, 0) / speeds.length;
}

function NoModels() {
  return (
    <Section>
      <Empty
        act={
          <LinkButton href="/models?tab=gallery" look="primary">
            Look through the gallery
          </LinkButton>
        }
        command="corral models search"
      >
        There is no model yet. Galleries have some; a pull brings one.
      </Empty>
    </Section>
  );
}

/** Files that should have been models. */
function PassedOver({ problems }: { problems: readonly Schema<"ModelProblemView">[] }) {
  if (problems.length === 0) return null;
  return (
    <Section title="Passed over">
      <ul className={styles.list}>
        {problems.map((problem) => (
          <li key={`${problem.source} ${problem.name} ${problem.problem}`}>
            <strong>{problem.name ? `${problem.source} (${problem.name})` : problem.source}</strong>: {problem.problem}
          </li>
        ))}
      </ul>
    </Section>
  );
}

/** Weights in the models directory that no model uses. */
function Offered({ files }: { files: readonly Schema<"ModelFileView">[] }) {
  const mayAct = useMay("models.act");
  const [path, setPath] = useState("");
  if (files.length === 0) return null;
  return (
    <Section title="Weights that no model uses yet">
      <ul className={styles.list}>
        {files.map((file) => (
          <li key={file.path} className={styles.offer}>
            <span>
              {file.path} ({bytes(file.size)})
            </span>
            {mayAct && (
              <Button isSmall onPress={() => setPath(file.path)}>
                Make it a model
              </Button>
            )}
          </li>
        ))}
      </ul>
      {path !== "" && <PullDialog reference={path} onClose={() => setPath("")} />}
    </Section>
  );
}
