/** Unloads a model everywhere, or on one node: what ends, and which requests are waited for. */

import { useCallback, useState } from "react";

import { answer, api } from "../api/client";
import { type ActPlan, Consequences, endsReplicasInUse } from "../parts/consequences";
import { Select } from "../parts/fields";
import { PlanDialog } from "../parts/plan-dialog";
import { planUnload } from "./act-plans";
import type { LiveModel } from "./live-model";
import { word } from "./pull-words";
import { type Model, useForgetModels } from "./queries";

const EVERYWHERE = "everywhere";

export function UnloadDialog({ model, live, onClose }: { model: Model; live: LiveModel; onClose: () => void }) {
  const forget = useForgetModels();
  const name = model.alias_of || model.name;
  const places = [...new Map(live.replicas.map((replica) => [replica.node_id, replica.node]))];
  const [nodeId, setNodeId] = useState(EVERYWHERE);
  const node = places.find(([id]) => id === nodeId)?.[1] ?? "";
  const plan = useCallback(async () => {
    const whole = await planUnload(name);
    return nodeId === EVERYWHERE ? whole : onlyOn(whole, nodeId, live);
  }, [name, nodeId, live]);
  const choices = [{ id: EVERYWHERE, label: "Everywhere" }, ...places.map(([id, label]) => ({ id, label }))];
  return (
    <PlanDialog<ActPlan>
      title={`Unload ${name}`}
      {...(places.length > 1
        ? { choose: <Select label="Where" choices={choices} value={nodeId} onChange={setNodeId} /> }
        : {})}
      plan={plan}
      show={(planned) => <Consequences plan={planned} nothing="Nothing runs for it." />}
      label={() => (nodeId === EVERYWHERE ? `Unload ${name}` : `Unload ${name} on ${node}`)}
      isDangerous
      nameToType={(planned) => (endsReplicasInUse(planned) ? name : null)}
      act={async () => {
        const body = { name, node: nodeId === EVERYWHERE ? "" : nodeId };
        await answer(api.POST("/api/v1/model-unloads", { body }));
        forget();
        return { message: `${name} is unloaded${node === "" ? "" : ` on ${node}`}. The next request loads it again.` };
      }}
      command={() => `corral models unload ${word(name)}${node === "" ? "" : ` --node ${word(node)}`}`}
      onClose={onClose}
    />
  );
}

/** The part of a plan that is about one node. */
function onlyOn(plan: ActPlan, nodeId: string, live: LiveModel): ActPlan {
  const own = live.replicas.filter((replica) => replica.node_id === nodeId);
  const isUnknown = own.some((replica) => replica.in_flight === null);
  return {
    ...plan,
    consequences: (plan.consequences ?? []).filter((row) => own.some((replica) => replica.node === row.node)),
    in_flight: isUnknown ? null : own.reduce((sum, replica) => sum + (replica.in_flight ?? 0), 0),
  };
}
