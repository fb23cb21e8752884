/** An engine that somebody else runs, as it is typed into the form. Pure. */

import type { Schema } from "../api/client";

export type Engine = Schema<"ExternalEngineView">;
export type EngineAsk = Schema<"EngineAsk">;

export interface EngineDraft {
  readonly model: string;
  readonly name: string;
  readonly url: string;
  readonly remoteModel: string;
  readonly uses: string;
  /** Typed anew, or left empty: then the stored one stays. */
  readonly key: string;
  readonly order: string;
  readonly weight: string;
  readonly atOnce: string;
}

export const NEW_ENGINE: EngineDraft = {
  model: "",
  name: "",
  url: "",
  remoteModel: "",
  uses: "chat completion",
  key: "",
  order: "0",
  weight: "1",
  atOnce: "0",
};

export function engineDraft(engine: Engine): EngineDraft {
  return {
    model: engine.model,
    name: engine.name,
    url: engine.url,
    remoteModel: engine.remote_model === engine.model ? "" : engine.remote_model,
    uses: engine.uses.join(" "),
    key: "",
    order: String(engine.fallback_order),
    weight: String(engine.weight),
    atOnce: String(engine.max_concurrent),
  };
}

/** What the server is told. Without a key in the body, the one that it knows stays. */
export function engineAsk(draft: EngineDraft, before: Engine | null): EngineAsk {
  return {
    model: draft.model.trim(),
    name: draft.name.trim(),
    url: draft.url.trim(),
    remote_model: draft.remoteModel.trim(),
    uses: draft.uses.split(/[\s,]+/).filter(Boolean),
    ca: before?.ca ?? "",
    health_path: before?.health_path ?? "",
    max_concurrent: Number(draft.atOnce),
    weight: Number(draft.weight),
    fallback_order: Number(draft.order),
    is_enabled: before?.is_enabled ?? true,
    ...(draft.key === "" ? {} : { key: draft.key }),
  };
}

/** The engine as it is, asked no longer or asked again. */
export function switched(engine: Engine, isEnabled: boolean): EngineAsk {
  return { ...engineAsk(engineDraft(engine), engine), is_enabled: isEnabled };
}

export function isEngineReady(draft: EngineDraft): boolean {
  const isCount = (text: string) => /^\d{1,6}$/.test(text.trim());
  const words = [draft.model, draft.name, draft.url, draft.uses];
  return words.every((word) => word.trim() !== "") && [draft.order, draft.weight, draft.atOnce].every(isCount);
}

/** When it is asked, in words. */
export function orderText(order: number): string {
  return order === 0 ? "beside the fleet" : `fallback ${order}`;
}
