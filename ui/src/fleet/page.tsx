/** The fleet at a glance: the pulse, what needs somebody, and every node. */

import { lazy, Suspense, useMemo } from "react";

import { useTopic } from "../live/live";
import { LinkButton } from "../parts/button";
import { useFilters } from "../parts/filters";
import { Page, Section } from "../parts/page";
import { Empty, Loading } from "../parts/states";
import { useMay, useSession } from "../shell/session";
import { Attention } from "./attention";
import { DoctorDialog } from "./doctor";
import { FilterBar } from "./filter-bar";
import { FirstSteps } from "./first-steps";
import styles from "./fleet.module.css";
import { History } from "./history";
import { NodesView } from "./nodes-view";
import { Pending } from "./pending";
import { Pulse } from "./pulse";
import { isShown, readFilter } from "./selection";

/** Loaded when somebody looks at a node: it brings the dialogs of acts along. */
const NodePanel = lazy(() => import("./node-panel"));

export default function FleetPage() {
  const { fleet } = useSession();
  const mayAdmit = useMay("nodes.admit");
  const filters = useFilters();
  return (
    <Page
      title="Fleet"
      note={fleet}
      actions={
        mayAdmit && (
          <LinkButton href="/join" icon="plus">
            Add a machine
          </LinkButton>
        )
      }
    >
      <Pulse />
      <FirstSteps />
      <Attention />
      <Pending />
      <Nodes />
      <History />
      {filters.get("doctor") === "open" && <DoctorDialog onClose={() => filters.set("doctor", "")} />}
    </Page>
  );
}

function Nodes() {
  const { items, isWhole } = useTopic("nodes");
  const filters = useFilters();
  const chosen = filters.get("node");
  const filter = readFilter(filters.get);
  const query = JSON.stringify(filter);
  // biome-ignore lint/correctness/useExhaustiveDependencies: `query` is the filter, as a text that stays the same
  const shown = useMemo(() => [...items.values()].filter((node) => isShown(node, filter)), [items, query]);
  if (!isWhole) return <Loading lines={4} label="Loading nodes" />;
  return (
    <div className={chosen === "" ? styles.alone : styles.beside}>
      <Section title={titleOf(shown.length, items.size)} actions={<FilterBar nodes={items} />} isBare>
        {shown.length === 0 ? <NoNodes isEmpty={items.size === 0} /> : <NodesView nodes={shown} />}
      </Section>
      {chosen !== "" && (
        <Suspense fallback={null}>
          <NodePanel id={chosen} onClose={() => filters.set("node", "")} />
        </Suspense>
      )}
    </div>
  );
}

function titleOf(shown: number, all: number): string {
  return shown === all ? `Nodes, ${all}` : `Nodes, ${shown} of ${all}`;
}

function NoNodes({ isEmpty }: { isEmpty: boolean }) {
  const mayAdmit = useMay("nodes.admit");
  if (!isEmpty)
    return <Empty act={<LinkButton href="/fleet">Show all nodes</LinkButton>}>No node fits these filters.</Empty>;
  const act = mayAdmit ? { act: <LinkButton href="/join">Add a machine</LinkButton> } : {};
  return (
    <Empty {...act} command="corral nodes invite">
      No machine belongs to this fleet yet.
    </Empty>
  );
}
