/** One operation without its targets: from the live list, or asked for where that has only newer ones. */

import { useQuery } from "@tanstack/react-query";

import { answer, api } from "../api/client";
import { useItem } from "../live/live";
import type { OperationRow } from "../live/topics";

export function useOperation(id: string): OperationRow | undefined {
  const live = useItem("operations", id);
  const asked = useQuery({
    queryKey: ["operation", id],
    queryFn: () => answer(api.GET("/api/v1/operations/{id}", { params: { path: { id } } })),
    enabled: live === undefined,
  });
  if (live !== undefined) return live;
  return asked.data === undefined ? undefined : { ...asked.data, worst: null };
}
