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
  const mayAct = useMay("backends.act");
  const { data } = useInstalled();
  const [deleted, setDeleted] = useState("");
  const here = (data?.items ?? []).flatMap(({ name, nodes }) =>
    nodes.filter((one) => one.node_id === node.id).map((one) => ({ ...one, name })),
  );
  return (
    <>
      <FollowBackends />
      {here.length > 0 && (
        <div>
          <div className={styles.panelHead}>
            <h3>Backends, {here.length}</h3>
          </div>
          <ul aria-label="Backends">
            {here.map((backend) => (
              <li key={backend.name} className={styles.panelRow}>
                <PageLink href={addressOf.backend(backend.name)}>{backend.name}</PageLink>
                <span className={styles.quiet}>
                  {backend.is_system ? "of the system" : <Installed at={backend.installed_at} />}
                </span>
                {mayAct && !backend.is_system && (
                  <Button
                    isSmall
                    look="quiet"
                    aria-label={`Delete ${backend.name} on ${node.name}…`}
                    onPress={() => setDeleted(backend.name)}
                  >
                    Delete…
                  </Button>
                )}
              </li>
            ))}
          </ul>
        </div>
      )}
      {deleted !== "" && (
        <ActDialog start={choiceOf("delete", deleted, [node.id])} isChosen onClose={() => setDeleted("")} />
      )}
    </>
  );
}

function Installed({ at }: { at: string }) {
  return at === "" ? (
    "installed"
  ) : (
    <span>
      installed <Age at={at} />
    </span>
  );
}
