/** What happened to a model, and who did it. */

import { useQuery } from "@tanstack/react-query";

import { ask } from "../api/client";
import { useTopic } from "../live/live";
import { type EventLine, EventLines } from "../parts/event-lines";
import { Section } from "../parts/page";
import { Empty, Failure, Forbidden, Loading } from "../parts/states";
import { useMay } from "../shell/session";

const MOST = 100;

export function EventsTab({ name }: { name: string }) {
  return useMay("audit.read") ? <Events name={name} /> : <Forbidden needs={["audit.read"]} />;
}

function Events({ name }: { name: string }) {
  const past = useQuery({
    queryKey: ["events", "model", name],
    queryFn: () => ask<readonly EventLine[]>("GET", `/api/v1/events?subject=${encodeURIComponent(name)}&limit=${MOST}`),
    staleTime: 0,
  });
  const fresh = useTopic("events").items;
  if (past.error !== null) return <Failure error={past.error} onRetry={() => void past.refetch()} />;
  if (past.data === undefined) return <Loading label="Reading the record" lines={5} />;
  const entries = newestFirst([...past.data, ...fresh.values()].filter((entry) => isAbout(entry, name)));
  return (
    <Section title="Events">
      {entries.length === 0 ? (
        <Empty command="corral events">Nothing is on record about it.</Empty>
      ) : (
        <EventLines events={entries} subject={name} />
      )}
    </Section>
  );
}

/** Each entry once, the newest first. */
export function newestFirst(entries: readonly EventLine[]): EventLine[] {
  const bySequence = new Map(entries.map((entry) => [entry.sequence, entry]));
  return [...bySequence.values()].sort((one, other) => other.sequence - one.sequence);
}

export function isAbout(entry: EventLine, model: string): boolean {
  const data: Readonly<Record<string, unknown>> = entry.data;
  return data["model"] === model || data["name"] === model || data["backend"] === model;
}
