/** Memory of one node over the last hour, as this frontend heard it. Asked for when somebody opens it. */

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { answer, api } from "../api/client";
import type { NodeRow } from "../live/topics";
import { Button } from "../parts/button";
import { bytes } from "../parts/format";
import { Section } from "../parts/page";
import { Plot } from "../parts/plot";
import { Failure, Loading } from "../parts/states";

export function MemoryHistory({ node }: { node: NodeRow }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <Section
      title="Memory over the last hour"
      actions={
        <Button look="quiet" isSmall onPress={() => setOpen(!isOpen)} aria-expanded={isOpen}>
          {isOpen ? "Hide" : "Show"}
        </Button>
      }
    >
      {isOpen ? <Lines id={node.id} /> : null}
    </Section>
  );
}

function Lines({ id }: { id: string }) {
  const history = useQuery({
    queryKey: ["history", "memory", id],
    queryFn: () => answer(api.GET("/api/v1/history", { params: { query: { series: "memory", node: id } } })),
  });
  if (history.isPending) return <Loading label="Loading the last hour" />;
  if (history.isError) return <Failure error={history.error} onRetry={() => void history.refetch()} />;
  const series = history.data.series.map(({ labels, values }) => ({ name: nameOf(labels), values }));
  return (
    <Plot
      title="In use"
      from={Date.parse(history.data.from) / 1000}
      stepSeconds={history.data.step_seconds}
      series={series}
      format={(value) => bytes(value)}
    />
  );
}

/** What tells one line of this node from another: the kind of memory, or the GPU. */
function nameOf(labels: Readonly<Record<string, string>>): string {
  const { node: _node, node_id: _id, ...rest } = labels;
  return Object.values(rest).join(" ") || "memory";
}
