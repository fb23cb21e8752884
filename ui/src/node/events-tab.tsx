/** What happened on this node: the record, newest first, with older pages on demand. */

import { useInfiniteQuery } from "@tanstack/react-query";

import { ask } from "../api/client";
import type { NodeRow } from "../live/topics";
import { Button } from "../parts/button";
import { type EventLine, EventLines } from "../parts/event-lines";
import { SearchField } from "../parts/fields";
import { useFilters } from "../parts/filters";
import { Section } from "../parts/page";
import { Empty, Failure, Loading } from "../parts/states";

const PAGE_SIZE = 100;

export function EventsTab({ node }: { node: NodeRow }) {
  const filters = useFilters();
  const text = filters.get("text");
  const events = useInfiniteQuery({
    queryKey: ["events", node.id, text],
    queryFn: ({ pageParam }) => eventsBefore(node.id, text, pageParam),
    initialPageParam: 0,
    getNextPageParam: (page) => (page.length < PAGE_SIZE ? undefined : page.at(-1)?.sequence),
    placeholderData: (before) => before,
  });
  return (
    <Section
      title="Events"
      actions={<SearchField label="Find events" value={text} onChange={(value) => filters.set("text", value)} />}
    >
      {events.isPending && <Loading label="Loading events" />}
      {events.isError && <Failure error={events.error} onRetry={() => void events.refetch()} />}
      {events.data && <Found events={events.data.pages.flat()} name={node.name} />}
      {events.hasNextPage && (
        <Button isSmall isDisabled={events.isFetchingNextPage} onPress={() => void events.fetchNextPage()}>
          Show older ones
        </Button>
      )}
    </Section>
  );
}

function Found({ events, name }: { events: readonly EventLine[]; name: string }) {
  if (events.length === 0) return <Empty command="corral events">Nothing is on record for this node.</Empty>;
  return <EventLines events={events} subject={name} />;
}

/** Newest first. `before` is a sequence number; 0 means from the end. */
async function eventsBefore(node: string, text: string, before: number): Promise<EventLine[]> {
  const query = new URLSearchParams({ node, limit: String(PAGE_SIZE) });
  if (text !== "") query.set("text", text);
  if (before > 0) query.set("before", String(before));
  const events = await ask<EventLine[]>("GET", `/api/v1/events?${query}`);
  return events.toSorted((one, other) => other.sequence - one.sequence);
}
