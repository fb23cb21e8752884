/** What the room asks the server, and when it asks again. */

import { type QueryKey, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef } from "react";

import { answer, api } from "../api/client";
import { signalOf } from "../backends/signal";
import { useTopic } from "../live/live";

export const FLEET_RULES: QueryKey = ["rules", "fleet"];
export const SCHEDULING: QueryKey = ["rules", "scheduling"];
const AFTER_MILLISECONDS = 400;

export function useFleetRules(isOpen: boolean) {
  return useQuery({
    queryKey: FLEET_RULES,
    queryFn: () => answer(api.GET("/api/v1/fleet-rules")),
    enabled: isOpen,
  });
}

export function useScheduling(isOpen: boolean) {
  return useQuery({
    queryKey: SCHEDULING,
    queryFn: () => answer(api.GET("/api/v1/scheduling")),
    enabled: isOpen,
  });
}

/** Asks again when nodes, operations or replicas have changed: then the fleet may be further with a rule. */
export function FollowRules() {
  const nodes = useTopic("nodes");
  const operations = useTopic("operations");
  const replicas = useTopic("replicas");
  const client = useQueryClient();
  const last = useRef<number | null>(null);
  const states = [...replicas.items.values()].map(({ id, state }) => ({ id, state, counts: {} }));
  const isReady = nodes.isWhole && operations.isWhole;
  const signal = isReady ? signalOf(nodes.items.values(), [...operations.items.values(), ...states]) : null;
  useEffect(() => {
    if (signal === null || last.current === signal) return;
    const isFirst = last.current === null;
    last.current = signal;
    if (isFirst) return;
    const timer = setTimeout(() => void client.invalidateQueries({ queryKey: ["rules"] }), AFTER_MILLISECONDS);
    return () => clearTimeout(timer);
  }, [signal, client]);
  return null;
}
