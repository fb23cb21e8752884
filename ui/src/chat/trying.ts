/** One request to a model, for the pages that try what it does: asked, waiting for the load, answered or refused. */

import { useCallback, useEffect, useRef, useState } from "react";

import type { LoadNews } from "../models/load-news";
import { type AskOptions, askModel, NotAnswered } from "./asking";
import { gateway } from "./chat-store";

export type Try<Result> =
  | { readonly state: "idle" }
  | { readonly state: "asking"; readonly sentAt: number; readonly news: LoadNews | null }
  | { readonly state: "done"; readonly result: Result; readonly seconds: number; readonly hasLoaded: boolean }
  | { readonly state: "failed"; readonly problem: string; readonly news: LoadNews | null };

export interface Trying<Result> {
  readonly attempt: Try<Result>;
  ask(path: string, body: BodyInit, read: (response: Response) => Promise<Result>): void;
  stop(): void;
  /** Notes that the answer waits for a load, so that its time is not taken for the model's. */
  noteLoad(): void;
}

export function useTry<Result>(): Trying<Result> {
  const [attempt, setAttempt] = useState<Try<Result>>({ state: "idle" });
  const running = useRef<AbortController | null>(null);
  const hasLoaded = useRef(false);
  useEffect(() => () => running.current?.abort(), []);

  const ask = useCallback((path: string, body: BodyInit, read: (response: Response) => Promise<Result>) => {
    running.current?.abort();
    const controller = new AbortController();
    running.current = controller;
    hasLoaded.current = false;
    let sentAt = Date.now();
    let news: LoadNews | null = null;
    const show = (next: Try<Result>) => {
      if (!controller.signal.aborted) setAttempt(next);
    };
    const options: AskOptions = {
      signal: controller.signal,
      onSent: () => {
        sentAt = Date.now();
        show({ state: "asking", sentAt, news });
      },
      onLoading: (told) => {
        news = told;
        hasLoaded.current = true;
        show({ state: "asking", sentAt, news });
      },
    };
    askModel(gateway, path, body, options)
      .then(read)
      .then((result) =>
        show({ state: "done", result, seconds: (Date.now() - sentAt) / 1000, hasLoaded: hasLoaded.current }),
      )
      .catch((error: unknown) => show(failureOf(error)));
  }, []);

  const stop = useCallback(() => {
    running.current?.abort();
    setAttempt({ state: "idle" });
  }, []);
  const noteLoad = useCallback(() => {
    hasLoaded.current = true;
  }, []);
  return { attempt, ask, stop, noteLoad };
}

function failureOf(error: unknown): Try<never> {
  if (error instanceof NotAnswered) return { state: "failed", problem: error.message, news: error.news };
  return { state: "failed", problem: error instanceof Error ? error.message : String(error), news: null };
}
