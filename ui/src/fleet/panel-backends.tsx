/** The backends of one node, beside the list. Deleting one shows first what that would touch. */

import { useState } from "react";

import { ActDialog } from "../backends/act-dialog";
import { choiceOf } from "../backends/acts";
import { FollowBackends, useInstalled } from "../backends/queries";
import type { NodeRow } from "../live/topics";
import { Button } from "../parts/button";
import { addressOf, PageLink } from "../parts/page-link";
import { Age } from "../parts/time";
import { useMay } from "../shell/session";
import styles from "./fleet.module.css";

export function PanelBackends({ node }: { node: NodeRow }) {
  const { data } = useInstalled();
  const [deleted, setDeleted] = useState("");
  const here = (data?.items ?? []).flatMap(({ name, nodes }) =>
    nodes.filter((one) => one.node_id === node.id).map((one) => ({ ...one, name })),
  );
  const ofSystem = here.filter((backend) => backend.is_system).map((backend) => backend.name);
  return (
    <>
      <FollowBackends />
      {here.length > 0 && (
        <div>
          <div className={styles.panelHead}>
            <h3>Backends, {here.length}</h3>
            <PageLink href={`${addressOf.node(node.id)}?tab=backends`}>All about them</PageLink>
          </div>
          <ul aria-label="Backends">
            {here
              .filter((backend) => !backend.is_system)
              .map((backend) => (
                <Row key={backend.name} node={node.name} backend={backend} onDelete={setDeleted} />
              ))}
            {ofSystem.length > 0 && <li className={styles.quiet}>of the machine: {ofSystem.join(", ")}</li>}
          </ul>
        </div>
      )}
      {deleted !== "" && (
        <ActDialog start={choiceOf("delete", deleted, [node.id])} isChosen onClose={() => setDeleted("")} />
      )}
    </>
  );
}

interface RowProps {
  readonly node: string;
  readonly backend: { readonly name: string; readonly installed_at: string };
  readonly onDelete: (name: string) => void;
}

function Row({ node, backend, onDelete }: RowProps) {
  const mayAct = useMay("backends.act");
  return (
    <li className={styles.panelRow}>
      <PageLink href={addressOf.backend(backend.name)}>{backend.name}</PageLink>
      <span className={styles.quiet}>
        installed <Age at={backend.installed_at || null} />
      </span>
      {mayAct && (
        <Button
          isSmall
          look="quiet"
          aria-label={`Delete ${backend.name} on ${node}…`}
          onPress={() => onDelete(backend.name)}
        >
          Delete…
        </Button>
      )}
    </li>
  );
}
