/** Engines that somebody else runs: whether they answer, and for which model. */

import { useQueryClient } from "@tanstack/react-query";
import { useMemo, useState } from "react";

import { answer, api, type Schema } from "../api/client";
import { sentenceOf } from "../api/errors";
import { Button } from "../parts/button";
import { ConfirmDialog } from "../parts/confirm-dialog";
import { count } from "../parts/format";
import { ActMenu } from "../parts/menu";
import { Section } from "../parts/page";
import { PageLink } from "../parts/page-link";
import { Empty, Failure, Loading } from "../parts/states";
import { StatusPill } from "../parts/status-pill";
import { byText, type Column, Table } from "../parts/table";
import { Age } from "../parts/time";
import { useMay } from "../shell/session";
import styles from "./backends.module.css";
import { type Engine, orderText, switched } from "./engine-draft";
import { EngineForm } from "./engine-form";
import { ENGINES, useEngines } from "./engine-queries";
import { type Trials, trialText } from "./engine-trials";

type Opened =
  | { readonly kind: "edit"; readonly engine: Engine | null }
  | { readonly kind: "remove"; readonly engine: Engine };

export function Engines() {
  const { data, error, refetch } = useEngines();
  const client = useQueryClient();
  const may = useMay("engines.manage");
  const [opened, setOpened] = useState<Opened | null>(null);
  const [trials, setTrials] = useState<Trials>(new Map());
  const columns = useMemo(() => {
    const again = () => client.invalidateQueries({ queryKey: ENGINES });
    const test = async (engine: Engine) => {
      const note = (text: string) => setTrials((before) => new Map(before).set(engine.id, text));
      note("Looking…");
      note(await look(engine));
      await again();
    };
    const turn = async (engine: Engine) => {
      await put(engine, !engine.is_enabled);
      await again();
    };
    return columnsOf(trials, may ? { open: setOpened, test, turn } : null);
  }, [client, may, trials]);
  if (error !== null) return <Failure error={error} onRetry={() => void refetch()} />;
  if (data === undefined) return <Loading />;
  const add = may && (
    <Button look="primary" icon="plus" onPress={() => setOpened({ kind: "edit", engine: null })}>
      Add an engine
    </Button>
  );
  return (
    <>
      <div className={styles.filters}>
        <p className={styles.intro}>Corral asks these and counts what they answer; it never starts or stops them.</p>
        <span className={styles.pushed}>{add}</span>
      </div>
      <Section isBare>
        {data.length === 0 ? (
          <Empty command="corral engines add MODEL NAME URL">
            No engine elsewhere answers for a model. Whatever has the URL of an OpenAI-compatible API will do.
          </Empty>
        ) : (
          <Table
            label="Engines elsewhere"
            rows={data}
            columns={columns}
            rowKey={(engine) => engine.id}
            rowHeight={48}
          />
        )}
      </Section>
      {opened?.kind === "edit" && <EngineForm engine={opened.engine} onClose={() => setOpened(null)} />}
      {opened?.kind === "remove" && <Remove engine={opened.engine} onClose={() => setOpened(null)} />}
    </>
  );
}

/** Looks at an engine now; what was found, or why nobody could look, as a sentence. */
async function look(engine: Engine): Promise<string> {
  try {
    const path = { params: { path: { id: engine.id } } };
    const trial: Schema<"EngineTrial"> = await answer(api.POST("/api/v1/external-engines/{id}/test", path));
    return trialText(trial, engine);
  } catch (error) {
    return sentenceOf(error);
  }
}

function put(engine: Engine, isEnabled: boolean) {
  const headers = { "If-Match": `"${engine.revision}"` };
  const params = { path: { id: engine.id } };
  return answer(api.PUT("/api/v1/external-engines/{id}", { params, body: switched(engine, isEnabled), headers }));
}

interface EngineActs {
  readonly open: (opened: Opened) => void;
  readonly test: (engine: Engine) => Promise<void>;
  readonly turn: (engine: Engine) => Promise<void>;
}

function columnsOf(trials: Trials, acts: EngineActs | null): readonly Column<Engine>[] {
  const columns: Column<Engine>[] = [
    {
      key: "name",
      title: "Engine",
      width: "minmax(110px, 1.3fr)",
      sort: byText((engine) => engine.name),
      cell: (engine) => <Name engine={engine} />,
    },
    {
      key: "state",
      title: "State",
      width: "minmax(120px, 1.8fr)",
      sort: byText((engine) => engine.state),
      cell: (engine) => <State engine={engine} trial={trials.get(engine.id)} />,
    },
    {
      key: "url",
      title: "URL",
      width: "minmax(120px, 1.6fr)",
      from: "tablet",
      cell: (engine) => <code title={engine.url}>{engine.url}</code>,
    },
    { key: "order", title: "Asked", width: "120px", from: "wide", cell: (engine) => orderText(engine.fallback_order) },
    {
      key: "flight",
      title: "In flight",
      width: "72px",
      from: "wide",
      isNumber: true,
      cell: (engine) => count(engine.in_flight),
    },
    {
      key: "used",
      title: "Last used",
      width: "92px",
      from: "wide",
      cell: (engine) => (engine.last_used_at ? <Age at={engine.last_used_at} /> : "not lately"),
    },
  ];
  if (acts !== null) {
    columns.push({
      key: "acts",
      title: "",
      width: "112px",
      isNumber: true,
      cell: (engine) => <Acts engine={engine} acts={acts} />,
    });
  }
  return columns;
}

function Name({ engine }: { engine: Engine }) {
  return (
    <span className={styles.twoLines}>
      <strong>{engine.name}</strong>
      <span className={styles.quietLine}>
        for <PageLink href={`/models/${encodeURIComponent(engine.model)}`}>{engine.model}</PageLink>
        {engine.remote_model !== "" && engine.remote_model !== engine.model && `, there ${engine.remote_model}`}
      </span>
    </span>
  );
}

function State({ engine, trial }: { engine: Engine; trial: string | undefined }) {
  const detail = trial ?? engine.reason;
  return (
    <span className={styles.twoLines} title={detail}>
      <StatusPill subject="engine" state={engine.state} />
      <span className={styles.quietLine} role={trial === undefined ? undefined : "status"}>
        {detail || <Looked at={engine.checked_at} />}
      </span>
    </span>
  );
}

function Looked({ at }: { at: string | null | undefined }) {
  return at ? (
    <>
      looked at <Age at={at} />
    </>
  ) : (
    "nobody looked yet"
  );
}

function Acts({ engine, acts }: { engine: Engine; acts: EngineActs }) {
  return (
    <span className={styles.rowActs}>
      <Button isSmall aria-label={`Test ${engine.name}`} onPress={() => void acts.test(engine)}>
        Test
      </Button>
      <ActMenu
        label={`More about ${engine.name}`}
        acts={[
          { id: "edit", label: "Change…", onAct: () => acts.open({ kind: "edit", engine }) },
          {
            id: "turn",
            label: engine.is_enabled ? "Ask it no longer" : "Ask it again",
            onAct: () => void acts.turn(engine),
          },
          { id: "remove", label: "Remove…", isDangerous: true, onAct: () => acts.open({ kind: "remove", engine }) },
        ]}
      />
    </span>
  );
}

function Remove({ engine, onClose }: { engine: Engine; onClose: () => void }) {
  const client = useQueryClient();
  const act = async () => {
    await answer(api.DELETE("/api/v1/external-engines/{id}", { params: { path: { id: engine.id } } }));
    await client.invalidateQueries({ queryKey: ENGINES });
  };
  return (
    <ConfirmDialog
      title={`Remove ${engine.name}`}
      label={`Remove ${engine.name}`}
      isDangerous
      act={act}
      onClose={onClose}
    >
      <p>
        {engine.model} is not asked there any more, and the key is forgotten. The engine itself is left alone. Answers
        under way are finished.
      </p>
    </ConfirmDialog>
  );
}
