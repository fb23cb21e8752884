/** The page of one model: its state, then what is asked for by the tab. */

import type { ReactNode } from "react";

import { ApiError } from "../api/errors";
import { LinkButton } from "../parts/button";
import { Page } from "../parts/page";
import { Empty, Failure, Loading, Notice } from "../parts/states";
import { WordPill } from "../parts/status-pill";
import { Tabs, useTab } from "../parts/tabs";
import { useMay } from "../shell/session";
import { ConfigTab } from "./config-tab";
import { EventsTab } from "./events-tab";
import { type LiveModel, useLiveModel } from "./live-model";
import { ModelActs } from "./model-acts";
import { modelWord } from "./model-state";
import { NowTab } from "./now-tab";
import { chatPath, MODEL_TABS, type ModelTab } from "./place";
import { type Model, useCapabilities, useFreshModels, useFreshWhy, useModel } from "./queries";
import { usesOf } from "./snippets";
import { UseTab } from "./use-tab";
import { WhyTab } from "./why-tab";

export function ModelPage({ name }: { name: string }) {
  return useMay("models.read") ? <WholeModel name={name} /> : <AskableModel name={name} />;
}

/** What developers of apps see: how to ask it. */
function AskableModel({ name }: { name: string }) {
  return (
    <Page title={name} actions={<ChatButton name={name} />}>
      <UseTab name={name} />
    </Page>
  );
}

function WholeModel({ name }: { name: string }) {
  useFreshModels();
  const model = useModel(name);
  if (isNoSuch(model.error)) return <NoSuchModel name={name} />;
  if (model.error !== null) {
    return (
      <Page title={name}>
        <Failure error={model.error} onRetry={() => void model.refetch()} />
      </Page>
    );
  }
  if (model.data === undefined) {
    return (
      <Page title={name}>
        <Loading label={`Loading ${name}`} lines={5} />
      </Page>
    );
  }
  return <KnownModel model={model.data} />;
}

function isNoSuch(error: unknown): boolean {
  return error instanceof ApiError && error.status === 404;
}

function NoSuchModel({ name }: { name: string }) {
  return (
    <Page title="No such model">
      <Empty act={<LinkButton href="/models">Show all models</LinkButton>}>
        There is no model {name}. It may have been removed.
      </Empty>
    </Page>
  );
}

function KnownModel({ model }: { model: Model }) {
  const live = useLiveModel(model);
  const tab = useTab(MODEL_TABS) as ModelTab;
  useFreshWhy(model.name, live.signs);
  return (
    <Page
      title={model.name}
      note={<StateLine model={model} live={live} />}
      actions={<Actions model={model} live={live} />}
    >
      {model.problems.map((problem) => (
        <Notice key={problem.problem} tone="red">
          {problem.source}: {problem.problem}
        </Notice>
      ))}
      <Tabs tabs={MODEL_TABS} label={`About ${model.name}`} />
      {contentOf(tab, model, live)}
    </Page>
  );
}

function contentOf(tab: ModelTab, model: Model, live: LiveModel): ReactNode {
  switch (tab) {
    case "now":
      return <NowTab model={model} live={live} />;
    case "why":
      return <WhyTab model={model} />;
    case "config":
      return <ConfigTab model={model} />;
    case "use":
      return <UseTab name={model.name} />;
    case "events":
      return <EventsTab name={model.name} />;
  }
}

function StateLine({ model, live }: { model: Model; live: LiveModel }) {
  return (
    <>
      {live.isWhole && <WordPill word={modelWord(live.state)} />}
      <span>{model.alias_of ? `alias of ${model.alias_of}` : model.backend}</span>
      {model.is_pinned && (
        <span title="It makes way for no other model, and is not unloaded for being idle.">kept once loaded</span>
      )}
    </>
  );
}

function Actions({ model, live }: { model: Model; live: LiveModel }) {
  return (
    <>
      <ChatButton name={model.name} />
      <ModelActs model={model} live={live} />
    </>
  );
}

function ChatButton({ name }: { name: string }) {
  const mayAsk = useMay("inference");
  const flags = useCapabilities().data?.find((each) => each.id === name)?.capabilities;
  if (!mayAsk || flags === undefined || !usesOf(flags).includes("chat")) return null;
  return (
    <LinkButton href={chatPath(name)} icon="chat">
      Chat
    </LinkButton>
  );
}
