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
