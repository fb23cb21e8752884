/** Filters that live in the address: shareable, and the back button undoes them. */

import { useCallback } from "react";
import { useSearchParams } from "wouter";

export interface Filters {
  get(name: string): string;
  /** Sets one filter; an empty value takes it away. */
  set(name: string, value: string): void;
}

export function useFilters(): Filters {
  const [query, setQuery] = useSearchParams();
  const set = useCallback(
    (name: string, value: string) =>
      setQuery(
        (before) => {
          const next = new URLSearchParams(before);
          if (value === "") next.delete(name);
          else next.set(name, value);
          return next;
        },
        { replace: true },
      ),
    [setQuery],
  );
  return { get: (name) => query.get(name) ?? "", set };
}

export interface OpenAct<Act extends string> {
  readonly act: Act | null;
  readonly open: (act: Act) => void;
  readonly close: () => void;
}

/** The act whose dialog is open. It stands in the address, so that links of other pages open it too. */
export function useOpenAct<Act extends string>(acts: readonly Act[]): OpenAct<Act> {
  const filters = useFilters();
  const asked = filters.get("act");
  return {
    act: acts.find((act) => act === asked) ?? null,
    open: (act) => filters.set("act", act),
    close: () => filters.set("act", ""),
  };
}
