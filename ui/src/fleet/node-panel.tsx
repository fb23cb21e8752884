/** What matters of one node, beside the list: what fills it, what it has, what happened, and what can be done. */

import { useQuery } from "@tanstack/react-query";

import { ask } from "../api/client";
import { useItem } from "../live/live";
import type { NodeRow } from "../live/topics";
import { NodeActs } from "../node/acts";
import { MemoryBar } from "../parts/bar";
import { LinkButton } from "../parts/button";
import { Dialog, SidePanel } from "../parts/dialog";
import { type EventLine, EventLines } from "../parts/event-lines";
import { bytes, count, plural } from "../parts/format";
import { Fact, Facts } from "../parts/page";
import { addressOf, PageLink } from "../parts/page-link";
import { ReplicaChips } from "../parts/replica-chips";
import { Empty } from "../parts/states";
import { StatusPill } from "../parts/status-pill";
import { Age, Since } from "../parts/time";
import { useWidth } from "../parts/width";
import { useMay } from "../shell/session";
import styles from "./fleet.module.css";
import { PanelBackends } from "./panel-backends";
import { PanelGpus } from "./panel-gpus";

const EVENTS = 6;

export default function NodePanel({ id, onClose }: { id: string; onClose: () => void }) {
  const node = useItem("nodes", id);
  const isPhone = useWidth() === "phone";
  const title = node?.name ?? "Node";
  const content =
    node === undefined ? <Empty>This node is not part of the fleet any more.</Empty> : <Content node={node} />;
  if (isPhone) {
    return (
      <Dialog title={title} onClose={onClose}>
        {content}
      </Dialog>
    );
  }
  return (
    <SidePanel title={title} onClose={onClose}>
      {content}
    </SidePanel>
  );
}

function Content({ node }: { node: NodeRow }) {
  const mayReadEvents = useMay("audit.read");
  const mayReadBackends = useMay("backends.read");
  return (
    <>
      <div className={styles.panelState}>
        <StatusPill subject="node" state={node.status} />
        {node.since !== null && (
          <span className={styles.quiet}>
            for <Since at={node.since} />
          </span>
        )}
      </div>
      <div className={styles.panelActs}>
        <LinkButton href={addressOf.node(node.id)} look="primary">
          Open node
        </LinkButton>
        <NodeActs node={node} />
      </div>
      {node.reason !== "" && <p>{node.reason}</p>}
      {node.problems.map((problem) => (
        <p key={problem} className={styles.problem}>
          {problem}
        </p>
      ))}
      <PanelGpus node={node} />
      <MemoryBar name="RAM" share={node.ram} isNamed />
      <Facts>
        <Fact name="Models">
          <ReplicaChips replicas={node.replicas} />
        </Fact>
        <Fact name="In flight">{count(node.in_flight)}</Fact>
        <Fact name="Heard">
          <Age at={node.heard_at} />
        </Fact>
        <Fact name="Disk free">
          {bytes(node.disk.free)} of {bytes(node.disk.total)}
        </Fact>
        <Fact name="GPUs">{node.gpus === null ? "tells only sums" : count(node.gpus)}</Fact>
        <Fact name="Worker">
          {node.kind} {node.version}
        </Fact>
        <Fact name="Address">{node.address || "none"}</Fact>
      </Facts>
      {mayReadBackends && <PanelBackends node={node} />}
      {mayReadEvents && <LastEvents id={node.id} />}
    </>
  );
}

function LastEvents({ id }: { id: string }) {
  const query = new URLSearchParams({ node: id, limit: String(EVENTS) });
  const events = useQuery({
    queryKey: ["events", "node", id, EVENTS],
    queryFn: () => ask<EventLine[]>("GET", `/api/v1/events?${query}`),
  });
  if (!events.data || events.data.length === 0) return null;
  return (
    <div>
      <div className={styles.panelHead}>
        <h3>Last {plural(events.data.length, "event")}</h3>
        <PageLink href={`${addressOf.node(id)}?tab=events`}>All events</PageLink>
      </div>
      <EventLines events={events.data.toReversed()} />
    </div>
  );
}
