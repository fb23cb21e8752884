/** What is live about one model: its replicas, its loads, its state. */

import { useMemo } from "react";

import { useTopic } from "../live/live";
import type { LoadRow, ReplicaRow } from "../live/topics";
import { furthestFirst, type StatedModel, servingName, stateOf } from "./model-state";

export interface LiveModel {
  readonly replicas: readonly ReplicaRow[];
  /** The one that is furthest first. */
  readonly loads: readonly LoadRow[];
  readonly state: string;
  /** Whether all of it has arrived: until then, nothing means "not yet". */
  readonly isWhole: boolean;
  /** Changes when something happened that may change what nodes say to one more replica. */
  readonly signs: string;
}

export function useLiveModel(model: StatedModel): LiveModel {
  const replicas = useTopic("replicas");
  const loads = useTopic("loads");
  const nodes = useTopic("nodes");
  const name = servingName(model);
  const statuses = useMemo(
    () => [...nodes.items.values()].map((node) => `${node.id} ${node.status}`).join("\n"),
    [nodes.items],
  );
  return useMemo(() => {
    const own = [...replicas.items.values()].filter((replica) => replica.model === name);
    const ownLoads = furthestFirst([...loads.items.values()].filter((load) => load.model === name));
    return {
      replicas: own.sort((one, other) => one.node.localeCompare(other.node) || one.index - other.index),
      loads: ownLoads,
      state: stateOf(model, own, ownLoads),
      isWhole: replicas.isWhole && loads.isWhole,
      signs: [
        statuses,
        ...own.map(({ id, state }) => `${id} ${state}`),
        ...ownLoads.map(({ id, phase }) => `${id} ${phase}`),
      ].join("\n"),
    };
  }, [model, name, replicas, loads, statuses]);
}
