/** Stores a configuration: what differs and which replicas are loaded again, then the act. */

import { useCallback } from "react";

import { useTopic } from "../live/live";
import { plural } from "../parts/format";
import { PlanDialog } from "../parts/plan-dialog";
import type { PlanLike } from "../parts/plan-steps";
import { Notice } from "../parts/states";
import { type Change, putConfig } from "./config-check";
import type { Revision } from "./config-editor";
import styles from "./config-editor.module.css";
import { DiffView } from "./diff-view";
import { setDraft } from "./drafts";
import { word } from "./pull-words";
import { useForgetModels } from "./queries";

export type ChangePlan = Change & PlanLike;

/** A change that was only tried, as a plan. */
export function planOf(change: Change): ChangePlan {
  return { ...change, hash: change.revision, text: restartText(change) };
}

export function restartText(change: Change): string {
  if (change.change === "") return "It is like this already; nothing would change.";
  if (change.reloads.length === 0) return "No replica serves another configuration; nothing is loaded again.";
  const verb = change.reloads.length === 1 ? "serves" : "serve";
  return `${plural(change.reloads.length, "replica")} ${verb} what it was, and will be replaced without a pause.`;
}

export function SaveDialog({
  model,
  now,
  text,
  onClose,
}: {
  model: string;
  now: Revision;
  text: string;
  onClose: () => void;
}) {
  const forget = useForgetModels();
  const plan = useCallback(
    async () => planOf(await putConfig(model, now.revision, text, true)),
    [model, now.revision, text],
  );
  return (
    <PlanDialog<ChangePlan>
      title={`Change ${model}`}
      plan={plan}
      show={(change) => (
        <>
          <DiffView before={now.text} after={text} label={`What changes in ${model}`} />
          <Restarts change={change} />
        </>
      )}
      label={(change) => saveLabel(change)}
      act={async () => {
        const change = await putConfig(model, now.revision, text, false);
        setDraft(model, null);
        forget();
        return { message: `Stored as change ${change.number}. Below, History has the way back.` };
      }}
      command={() => `corral models edit ${word(model)}`}
      onClose={onClose}
    />
  );
}

function saveLabel(change: ChangePlan): string {
  return change.reloads.length === 0 ? "Store it" : `Store it and replace ${plural(change.reloads.length, "replica")}`;
}

/** What is loaded again, by node, and what the author probably meant otherwise. */
export function Restarts({ change }: { change: Change }) {
  const replicas = useTopic("replicas").items;
  const nodes = change.reloads.flatMap((id) => replicas.get(id)?.node ?? []);
  return (
    <>
      <p>
        {restartText(change)}
        {nodes.length > 0 && <span className={styles.quiet}> On: {[...new Set(nodes)].join(", ")}.</span>}
      </p>
      {change.warnings.map((warning) => (
        <Notice key={warning} tone="yellow">
          {warning}
        </Notice>
      ))}
    </>
  );
}
