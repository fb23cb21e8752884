/** The live state as components use it: `useTopic`, `useItem`, `useConnection`. */

import { useCallback, useEffect, useSyncExternalStore } from "react";

import type { TopicState } from "./merge";
import { type Connection, LiveStore } from "./store";
import { LiveTabs } from "./tabs";
import { ALWAYS, type FixedTopics, type ItemOf, type NodeExtras, permissionFor, type Topic } from "./topics";

const store = new LiveStore();
const tabs = new LiveTabs(store);
/** Topics that some component of this tab shows now, by how many do. */
const shown = new Map<Topic, number>();
let permissions: ReadonlySet<string> = new Set();

/** Begins to follow what this person may see. Called when somebody signs in. */
export function startLive(granted: readonly string[]): void {
  permissions = new Set(granted);
  follow();
  tabs.again();
}

/** Ends it and forgets what was seen. Called when somebody signs out. */
export function stopLive(): void {
  permissions = new Set();
  follow();
  store.clear();
}

function follow(): void {
  const wanted = [...new Set([...ALWAYS, ...shown.keys()])];
  tabs.want(wanted.filter((topic) => permissions.has(permissionFor(topic))));
}

function show(topic: Topic): () => void {
  const isNew = !shown.has(topic);
  shown.set(topic, (shown.get(topic) ?? 0) + 1);
  if (isNew && !ALWAYS.includes(topic)) follow();
  return () => {
    const left = (shown.get(topic) ?? 1) - 1;
    if (left > 0) shown.set(topic, left);
    else shown.delete(topic);
    if (left === 0 && !ALWAYS.includes(topic)) follow();
  };
}

export interface LiveTopic<Item> {
  readonly items: ReadonlyMap<string, Item>;
  /** Whether all items are there: until then, an empty map means "not yet". */
  readonly isWhole: boolean;
  /** Of a topic about one node or operation: there is none of that id. */
  readonly isMissing: boolean;
}

/** All items of a topic. The component is drawn again when one of them changes. */
export function useTopic<T extends Topic>(topic: T): LiveTopic<ItemOf<T>> {
  useEffect(() => show(topic), [topic]);
  const subscribe = useCallback((listener: () => void) => store.subscribe(topic, listener), [topic]);
  const state: TopicState = useSyncExternalStore(subscribe, () => store.topic(topic));
  return state as LiveTopic<ItemOf<T>>;
}

/** One item of a topic; undefined while it is not there. Drawn again only when this one changes. */
export function useItem<T extends Topic>(topic: T, key: string): ItemOf<T> | undefined {
  useEffect(() => show(topic), [topic]);
  const subscribe = useCallback((listener: () => void) => store.subscribe(topic, listener), [topic]);
  return useSyncExternalStore(subscribe, () => store.topic(topic).items.get(key)) as ItemOf<T> | undefined;
}

/** The fleet in one value; undefined until it arrived. */
export function useSummary(): FixedTopics["summary"] | undefined {
  const { items } = useTopic("summary");
  return items.values().next().value;
}

export function useConnection(): Connection {
  return useSyncExternalStore(
    (listener) => store.subscribeConnection(listener),
    () => store.connection,
  );
}

/** Milliseconds since the stream last showed that it lives. */
export function silence(): number {
  return Date.now() - store.heardAt;
}

/** What the page of one node shows beyond its row; undefined while that is not there. */
export function useNodeExtra<Key extends keyof NodeExtras>(nodeId: string, key: Key): NodeExtras[Key] | undefined {
  return useItem(`node:${nodeId}`, key) as NodeExtras[Key] | undefined;
}
