/** What this room asks the server for, and when it asks again. Nothing is polled: live rows tell when to look. */

import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef } from "react";

import { answer, api, ask, type Schema } from "../api/client";
import { useSummary, useTopic } from "../live/live";

export type Model = Schema<"ModelView">;
export type GalleryModel = Schema<"GalleryModelView">;

export const MODELS_KEY = ["models"] as const;
const modelKey = (name: string) => [...MODELS_KEY, "one", name] as const;
const whyKey = (name: string) => [...MODELS_KEY, "why", name] as const;
const historyKey = (name: string) => [...MODELS_KEY, "history", name] as const;

export function useModels(isAllowed = true) {
  return useQuery({
    queryKey: [...MODELS_KEY, "list"],
    queryFn: () => answer(api.GET("/api/v1/models")),
    enabled: isAllowed,
  });
}

export function useModel(name: string) {
  return useQuery({
    queryKey: modelKey(name),
    queryFn: () => answer(api.GET("/api/v1/models/{name}", { params: { path: { name } } })),
  });
}

export function useWhy(name: string) {
  return useQuery({
    queryKey: whyKey(name),
    queryFn: () => answer(api.GET("/api/v1/models/{name}/why", { params: { path: { name } } })),
    staleTime: 0,
  });
}

export function useHistory(name: string) {
  return useQuery({
    queryKey: historyKey(name),
    queryFn: () => answer(api.GET("/api/v1/model-history/{name}", { params: { path: { name } } })),
    staleTime: 0,
  });
}

/** Looks again at everything about models, after an act. */
export function useForgetModels(): () => void {
  const client = useQueryClient();
  return () => void client.invalidateQueries({ queryKey: MODELS_KEY });
}

const ABOUT_MODELS = new Set(["pull", "remove"]);

/** Looks again when models come or go: their number changes, or an operation about one begins or ends. */
export function useFreshModels(): void {
  const forget = useForgetModels();
  const count = useSummary()?.models;
  const { items } = useTopic("operations");
  const operations = [...items.values()]
    .filter((operation) => ABOUT_MODELS.has(operation.verb))
    .map((operation) => `${operation.id} ${operation.state}`)
    .join("\n");
  useOnChange(`${count ?? ""}\n${operations}`, forget);
}

/** Looks again at why a model is where it is, when its replicas or loads change, or nodes come and go. */
export function useFreshWhy(name: string, signs: string): void {
  const client = useQueryClient();
  useOnChange(signs, () => {
    void client.invalidateQueries({ queryKey: whyKey(name) });
    void client.invalidateQueries({ queryKey: modelKey(name) });
  });
}

/** Does something when a value is another one than at the last time; not for the first one. */
function useOnChange(value: string, act: () => void): void {
  const before = useRef(value);
  useEffect(() => {
    if (before.current === value) return;
    before.current = value;
    act();
  });
}

/** What each model is for, for everybody who may ask models. */
export interface CapableModel {
  readonly id: string;
  readonly capabilities: readonly string[];
  readonly disabled?: boolean;
  readonly source?: string;
}

export function useCapabilities() {
  return useQuery({
    queryKey: [...MODELS_KEY, "capabilities"],
    queryFn: () => ask<{ data: readonly CapableModel[] }>("GET", "/api/models/capabilities"),
    select: (page) => page.data.filter((model) => model.source !== "registry-only"),
  });
}

export interface GallerySearch {
  readonly term: string;
  readonly use: string;
  readonly maxBytes: string;
}

const PER_PAGE = 50;

export function useGallery({ term, use, maxBytes }: GallerySearch) {
  return useInfiniteQuery({
    queryKey: ["gallery", term, use, maxBytes],
    queryFn: ({ pageParam }) => {
      const asked = { term, use, max_bytes: maxBytes, page: String(pageParam), per_page: String(PER_PAGE) };
      const query = new URLSearchParams(Object.entries(asked).filter(([, value]) => value !== ""));
      return ask<Schema<"GalleryModelList">>("GET", `/api/v1/gallery-models?${query}`);
    },
    initialPageParam: 1,
    getNextPageParam: (page) => (page.page < page.pages ? page.page + 1 : undefined),
    placeholderData: (before) => before,
    staleTime: 60_000,
  });
}

export function useGalleryEntry(id: string) {
  return useQuery({
    queryKey: ["gallery-entry", id],
    queryFn: () => ask<Schema<"GalleryModelDetail">>("GET", `/api/v1/gallery-models/${encodeURIComponent(id)}`),
    staleTime: 60_000,
    enabled: id !== "",
  });
}
