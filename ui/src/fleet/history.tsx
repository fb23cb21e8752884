/** The last hour as lines: tokens, requests, queue. Asked for when somebody opens it. */

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { answer, api } from "../api/client";
import { Button } from "../parts/button";
import { count } from "../parts/format";
import { Section } from "../parts/page";
import { Plot, type Series } from "../parts/plot";
import { Failure, Loading } from "../parts/states";
import { useMay } from "../shell/session";
import styles from "./fleet.module.css";
import { sumOf } from "./history-lines";

const SERIES = "tokens,requests,queue,in_flight";

export function History() {
  const [isOpen, setOpen] = useState(false);
  const mayRead = useMay("metrics.read");
  if (!mayRead) return null;
  return (
    <Section
      title="Tokens, requests and queue over the last hour"
      actions={
        <Button look="quiet" isSmall onPress={() => setOpen(!isOpen)} aria-expanded={isOpen}>
          {isOpen ? "Hide" : "Show"}
        </Button>
      }
    >
      {isOpen ? <Lines /> : null}
    </Section>
  );
}

function Lines() {
  const history = useQuery({
    queryKey: ["history", SERIES],
    queryFn: () => answer(api.GET("/api/v1/history", { params: { query: { series: SERIES } } })),
  });
  if (history.isPending) return <Loading label="Loading the last hour" />;
  if (history.isError) return <Failure error={history.error} onRetry={() => void history.refetch()} />;
  const from = Date.parse(history.data.from) / 1000;
  const step = history.data.step_seconds;
  const line = (name: string, label: string): Series[] => sumOf(history.data.series, name, label);
  const perSecond = (value: number) => `${value.toFixed(value < 1 ? 2 : value < 10 ? 1 : 0)}/s`;
  return (
    <div className={styles.plots}>
      <Plot
        title="Tokens per second"
        from={from}
        stepSeconds={step}
        series={line("tokens", "tokens")}
        format={perSecond}
      />
      <Plot
        title="Requests per second"
        from={from}
        stepSeconds={step}
        series={line("requests", "requests")}
        format={perSecond}
      />
      <Plot
        title="Requests under way, and waiting"
        from={from}
        stepSeconds={step}
        series={[...line("in_flight", "under way"), ...line("queue", "waiting")]}
        format={(value) => count(Math.round(value))}
      />
    </div>
  );
}
