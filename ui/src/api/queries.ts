/** How reads are cached. Nothing is polled: what changes by itself arrives by the live stream. */

import { QueryClient } from "@tanstack/react-query";

import { ApiError } from "./errors";

const MOST_RETRIES = 2;

export const queries = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 15_000,
      refetchOnWindowFocus: false,
      refetchOnReconnect: false,
      retry: (failures, error) => failures < MOST_RETRIES && isWorthAnother(error),
    },
    mutations: { retry: false },
  },
});

/** Refusals do not change by asking again; a frontend that is restarting does answer a moment later. */
function isWorthAnother(error: Error): boolean {
  return !(error instanceof ApiError) || error.status === 503 || error.status === 504;
}
