/** Loads a model without waiting for a request: where it would go, and every node's reason if it cannot. */

import { useCallback, useState } from "react";

import { answer, api, type Schema } from "../api/client";
import { useTopic } from "../live/live";
import { Select } from "../parts/fields";
import { PlanDialog } from "../parts/plan-dialog";
import styles from "./acts.module.css";
import { word } from "./pull-words";
import { type Model, useForgetModels } from "./queries";
import { groupSentence, groupVerdicts } from "./why-groups";

type Why = Schema<"WhyView">;
type LoadPlan = Why & { readonly hash: string; readonly text: string };

const ANY = "any";

export function LoadDialog({ model, onClose }: { model: Model; onClose: () => void }) {
  const forget = useForgetModels();
  const nodes = useTopic("nodes").items;
  const [nodeId, setNodeId] = useState(ANY);
  const node = nodes.get(nodeId)?.name ?? "";
  const plan = useCallback(async (): Promise<LoadPlan> => {
    const why = await answer(api.GET("/api/v1/models/{name}/why", { params: { path: { name: model.name } } }));
    return { ...why, hash: why.summary, text: why.summary };
  }, [model.name]);
  const choices = [...nodes.values()]
    .filter((each) => each.kind !== "agent" && each.status === "healthy")
    .sort((one, other) => one.name.localeCompare(other.name))
    .map(({ id, name }) => ({ id, label: name }));
  return (
    <PlanDialog<LoadPlan>
      title={`Load ${model.name}`}
      choose={
        <Select
          label="Where"
          choices={[{ id: ANY, label: "The best node" }, ...choices]}
          value={nodeId}
          onChange={setNodeId}
        />
      }
      plan={plan}
      show={(why) => <WouldGo why={why} nodeId={nodeId} />}
      label={() => (nodeId === ANY ? `Load ${model.name}` : `Load ${model.name} on ${node}`)}
      obstacle={(why) => obstacleOf(why, nodeId)}
      act={async () => {
        const body = { name: model.name, node: nodeId === ANY ? "" : nodeId };
        await answer(api.POST("/api/v1/model-loads", { body }));
        forget();
        return { message: `${model.name} is being loaded. Its page shows how far that is.` };
      }}
      command={() => `corral models load ${word(model.name)}${nodeId === ANY ? "" : ` --node ${word(node)}`}`}
      onClose={onClose}
    />
  );
}

function WouldGo({ why, nodeId }: { why: Why; nodeId: string }) {
  const { fitting, groups } = groupVerdicts(why.verdicts);
  const target = nodeId === ANY ? fitting[0] : why.verdicts.find((verdict) => verdict.node_id === nodeId);
  return (
    <div className={styles.form}>
      {target !== undefined && target.code === "fits" && (
        <p>
          It would go to <strong>{target.node}</strong>.
        </p>
      )}
      {target?.why && (
        <p>
          <strong>{target.node}</strong> {target.why}.
        </p>
      )}
      <ul className={styles.quiet}>
        {groups.map((group) => (
          <li key={group.key}>{groupSentence(group)}</li>
        ))}
      </ul>
    </div>
  );
}

/** A node that cannot take it is refused by the server too; where none can now, the load waits for one. */
function obstacleOf(why: Why, nodeId: string): string | null {
  if (nodeId === ANY) return why.verdicts.length === 0 ? "No node has joined yet." : null;
  const verdict = why.verdicts.find((each) => each.node_id === nodeId);
  return verdict !== undefined && verdict.code !== "fits" ? "This node cannot take it now." : null;
}
