/** What is asked of the server about engines elsewhere. */

import { type QueryKey, useQuery } from "@tanstack/react-query";

import { answer, api } from "../api/client";

export const ENGINES: QueryKey = ["engines"];

export function useEngines() {
  return useQuery({ queryKey: ENGINES, queryFn: () => answer(api.GET("/api/v1/external-engines")) });
}
