/** How far the load is that an answer waits for. Those who may see loads hear it live; others ask, only while they wait. */

import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";

import { answer, api } from "../api/client";
import { useTopic } from "../live/live";
import { type LoadingAnswer, type LoadNews, newsOfAnswer, newsOfRow } from "../models/load-news";
import { furthestFirst } from "../models/model-state";
import { useModels } from "../models/queries";
import { useMay } from "../shell/session";

/** A model that is loaded answers sooner; then nothing is asked at all. */
const FIRST_LOOK_MILLISECONDS = 700;
const LOOK_MILLISECONDS = 1000;

/** The news of a load while somebody waits for a model since `sentAt`; null when nothing is known of one. */
export function useLoadNews(model: string, sentAt: number | null): LoadNews | null {
  const mayRead = useMay("models.read");
  const isLate = useIsLate(sentAt);
  const live = useLiveLoad(model);
  const polled = useLoadStatus(model, !mayRead && isLate);
  return isLate ? (live ?? polled) : null;
}

/** The load of the model as the live stream tells it; null where there is none, or one may not see it. */
function useLiveLoad(model: string): LoadNews | null {
  const loads = useTopic("loads").items;
  const serving = useServingName(model);
  const [load] = furthestFirst([...loads.values()].filter((each) => each.model === serving));
  return useMemo(() => (load === undefined ? null : newsOfRow(load)), [load]);
}

/** The model that an alias stands for. */
function useServingName(model: string): string {
  const models = useModels(useMay("models.read"));
  return models.data?.items.find((each) => each.name === model)?.alias_of || model;
}

function useIsLate(sentAt: number | null): boolean {
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    setLate(false);
    if (sentAt === null) return;
    const timer = setTimeout(() => setLate(true), FIRST_LOOK_MILLISECONDS);
    return () => clearTimeout(timer);
  }, [sentAt]);
  return isLate;
}

function useLoadStatus(model: string, isWanted: boolean): LoadNews | null {
  const status = useQuery({
    queryKey: ["load-status", model],
    queryFn: () => loadStatus(model),
    enabled: isWanted,
    refetchInterval: LOOK_MILLISECONDS,
    staleTime: 0,
    gcTime: 0,
  });
  const told = isWanted ? (status.data ?? null) : null;
  return useMemo(() => (told === null ? null : newsOfAnswer(told)), [told]);
}

/** Null while no load is under way for it. */
async function loadStatus(model: string): Promise<LoadingAnswer | null> {
  const view = await answer(api.GET("/api/v1/model-loads/{name}", { params: { path: { name: model } } }));
  return view.loading;
}
