/** What the room asks the server, and when it asks again. */

import { type QueryKey, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef } from "react";

import { answer, api, ask } from "../api/client";
import { useTopic } from "../live/live";
import type { DriftItem } from "./drift-rows";
import { signalOf } from "./signal";

/** Everything below this key is about backends. */
const BACKENDS: QueryKey = ["backends"];
const AFTER_MILLISECONDS = 300;
const LEAST_MILLISECONDS_BETWEEN = 2_000;

export function useOffers() {
  return useQuery({ queryKey: [...BACKENDS, "offers"], queryFn: () => answer(api.GET("/api/v1/galleries")) });
}

export function useInstalled() {
  return useQuery({ queryKey: [...BACKENDS, "installed"], queryFn: () => answer(api.GET("/api/v1/backends")) });
}

export function useUpgrades() {
  return useQuery({ queryKey: UPGRADES, queryFn: () => answer(api.GET("/api/v1/backends/upgrades")) });
}

export const UPGRADES: QueryKey = [...BACKENDS, "upgrades"];

export function useDrift() {
  return useQuery({
    queryKey: [...BACKENDS, "drift"],
    queryFn: () => ask<{ items: DriftItem[] }>("GET", "/api/v1/drift"),
  });
}

/** Asks again soon after the live stream shows a change that matters here. Draws nothing. */
export function FollowBackends() {
  const nodes = useTopic("nodes");
  const operations = useTopic("operations");
  const attention = useTopic("attention");
  const client = useQueryClient();
  const asked = useRef({ at: 0, signal: null as number | null });
  const isReady = nodes.isWhole && operations.isWhole;
  const signal = isReady ? signalOf(nodes.items.values(), operations.items.values(), attention.items.values()) : null;
  useEffect(() => {
    if (signal === null || asked.current.signal === signal) return;
    const isFirst = asked.current.signal === null;
    const wait = Math.max(AFTER_MILLISECONDS, asked.current.at + LEAST_MILLISECONDS_BETWEEN - Date.now());
    const timer = setTimeout(
      () => {
        asked.current = { at: Date.now(), signal };
        if (!isFirst) void client.invalidateQueries({ queryKey: BACKENDS });
      },
      isFirst ? 0 : wait,
    );
    return () => clearTimeout(timer);
  }, [signal, client]);
  return null;
}
