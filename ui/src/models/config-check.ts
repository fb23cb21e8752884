/** Has the server check a configuration once nobody has typed for a moment. */

import { useEffect, useState } from "react";

import { ask, type Schema } from "../api/client";
import { sentenceOf } from "../api/errors";
import { type ConfigProblem, problemOf } from "./config-problems";

export type Change = Schema<"ModelChange">;

export type ConfigCheck =
  | { readonly state: "unasked" }
  | { readonly state: "checking" }
  | { readonly state: "accepted"; readonly change: Change }
  | { readonly state: "refused"; readonly problem: ConfigProblem };

const PAUSE_MILLISECONDS = 500;

/** What the server would make of a text; of none, nothing is asked. */
export function useConfigCheck(model: string, revision: string, text: string | null): ConfigCheck {
  const [check, setCheck] = useState<ConfigCheck>({ state: "unasked" });
  useEffect(() => {
    if (text === null) {
      setCheck({ state: "unasked" });
      return;
    }
    setCheck({ state: "checking" });
    let isCurrent = true;
    const timer = setTimeout(async () => {
      const result = await checked(model, revision, text);
      if (isCurrent) setCheck(result);
    }, PAUSE_MILLISECONDS);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [model, revision, text]);
  return check;
}

async function checked(model: string, revision: string, text: string): Promise<ConfigCheck> {
  try {
    return { state: "accepted", change: await putConfig(model, revision, text, true) };
  } catch (error) {
    return { state: "refused", problem: problemOf(sentenceOf(error)) };
  }
}

export function putConfig(model: string, revision: string, text: string, isTrial: boolean): Promise<Change> {
  const body = { config: text, if_revision: revision, dry_run: isTrial };
  return ask<Change>("PUT", `/api/v1/models/${encodeURIComponent(model)}`, body);
}
