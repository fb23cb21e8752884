/** One node: what it is, what it does now, what it has, what happened on it, and what may be changed. */

import { Route, Switch } from "wouter";

import { useTopic } from "../live/live";
import type { NodeRow } from "../live/topics";
import { LinkButton } from "../parts/button";
import { Page } from "../parts/page";
import { Empty, Loading, Notice } from "../parts/states";
import { StatusPill } from "../parts/status-pill";
import { type Tab, Tabs, useTab } from "../parts/tabs";
import { Age, Since } from "../parts/time";
import { useMay } from "../shell/session";
import { NodeActs } from "./acts";
import { Approval } from "./approval";
import { BackendsTab } from "./backends-tab";
import { EventsTab } from "./events-tab";
import { LogsTab } from "./logs-tab";
import { NowTab } from "./now-tab";
import { SettingsTab } from "./settings-tab";

export default function NodePage() {
  return (
    <Switch>
      <Route path="/:id">{({ id }) => <OneNode key={id} id={decodeURIComponent(id)} />}</Route>
      <Route>
        <NoSuchNode />
      </Route>
    </Switch>
  );
}

function OneNode({ id }: { id: string }) {
  const { items, isWhole } = useTopic("nodes");
  const node = items.get(id);
  if (node !== undefined) return <Loaded node={node} />;
  return isWhole ? <NoSuchNode /> : <Loading lines={5} label="Loading the node" />;
}

function NoSuchNode() {
  return (
    <Page title="No such node">
      <Empty act={<LinkButton href="/fleet">Show all nodes</LinkButton>}>
        There is no node with this id. It may have been removed.
      </Empty>
    </Page>
  );
}

function Loaded({ node }: { node: NodeRow }) {
  const tabs = useNodeTabs();
  const tab = useTab(tabs);
  return (
    <Page title={node.name} note={<State node={node} />} actions={<NodeActs node={node} />}>
      {node.reason !== "" && node.status !== "pending" && <Notice tone={toneOf(node)}>{node.reason}</Notice>}
      {node.problems.map((problem) => (
        <Notice key={problem} tone="red">
          {problem}
        </Notice>
      ))}
      {node.status === "pending" && <Approval node={node} />}
      <Tabs tabs={tabs} label="About this node" />
      {tab === "now" && <NowTab node={node} />}
      {tab === "backends" && <BackendsTab node={node} />}
      {tab === "logs" && <LogsTab node={node} />}
      {tab === "events" && <EventsTab node={node} />}
      {tab === "settings" && <SettingsTab node={node} />}
    </Page>
  );
}

function State({ node }: { node: NodeRow }) {
  return (
    <>
      <StatusPill subject="node" state={node.status} />
      {node.since !== null && (
        <span>
          for <Since at={node.since} />
        </span>
      )}
      <span>
        heard <Age at={node.heard_at} />
      </span>
      <span>{workerOf(node)}</span>
    </>
  );
}

const KINDS: Readonly<Record<string, string>> = { corral: "Corral worker", localai: "LocalAI worker", agent: "agent" };

function workerOf(node: NodeRow): string {
  return `${KINDS[node.kind] ?? node.kind} ${node.version}`.trim();
}

function toneOf(node: NodeRow): "red" | "yellow" | "grey" {
  if (node.status === "unhealthy") return "red";
  return node.status === "draining" ? "yellow" : "grey";
}

function useNodeTabs(): Tab[] {
  const mayReadLogs = useMay("nodes.logs");
  const mayReadEvents = useMay("audit.read");
  const mayReadBackends = useMay("backends.read");
  return [
    { id: "now", title: "Now" },
    ...(mayReadBackends ? [{ id: "backends", title: "Backends" }] : []),
    ...(mayReadLogs ? [{ id: "logs", title: "Logs" }] : []),
    ...(mayReadEvents ? [{ id: "events", title: "Events" }] : []),
    { id: "settings", title: "Settings" },
  ];
}
