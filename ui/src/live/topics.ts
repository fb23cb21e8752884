/** The topics of the live stream, and what the items of each look like. */

import type { components } from "../api/schema.gen";

/** Bytes of one kind of memory; null where the node does not tell. */
export interface MemoryShare {
  readonly total: number | null;
  readonly used: number | null;
  readonly reserved: number | null;
}

export interface DiskShare {
  readonly total: number | null;
  readonly free: number | null;
}

export interface ReplicaChip {
  readonly model: string;
  readonly state: string;
  readonly in_flight: number | null;
}

export interface NodeRow {
  readonly id: string;
  readonly name: string;
  readonly kind: "corral" | "localai" | "agent";
  readonly version: string;
  readonly status: string;
  readonly reason: string;
  readonly since: string | null;
  readonly heard_at: string | null;
  readonly address: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly capability: string;
  readonly vram: MemoryShare;
  readonly ram: MemoryShare;
  readonly disk: DiskShare;
  /** Null where the machine tells only sums. */
  readonly gpus: number | null;
  readonly slots: number;
  readonly replicas: readonly ReplicaChip[];
  readonly in_flight: number | null;
  readonly problems: readonly string[];
  readonly pending_since: string | null;
  readonly fingerprint: string;
  readonly draining_by: string;
  /** How often it is heard when all is well. */
  readonly heartbeat_seconds: number;
}

export type ReplicaRow = components["schemas"]["ReplicaView"];

export type TargetRow = components["schemas"]["TargetView"];

export interface Worst {
  readonly node: string;
  readonly status: string;
  readonly message: string;
}

export type OperationRow = Omit<components["schemas"]["OperationView"], "targets"> & { readonly worst: Worst | null };

export interface LoadStep {
  readonly step: string;
  readonly seconds: number;
  readonly state: string;
}

export interface LoadRow {
  readonly id: string;
  readonly model: string;
  readonly node: string;
  readonly node_id: string;
  readonly phase: string;
  readonly since: string;
  readonly steps: readonly LoadStep[];
  readonly bytes: number | null;
  readonly total_bytes: number | null;
  readonly bytes_per_second: number | null;
  readonly seconds_left: number | null;
  readonly message: string;
  readonly is_permanent: boolean;
  readonly retry_in_seconds: number | null;
  /** Who wanted it, in the words of replicas. */
  readonly why: string;
  /** The code of what it waits for, or why it failed. */
  readonly reason: string;
  /** What the engine wrote last before the load failed. */
  readonly engine_lines: readonly string[];
}

export type AttentionItem = components["schemas"]["AttentionItem"];

export type Summary = components["schemas"]["FleetSummary"];

export type RecordEntry = components["schemas"]["EventView"];

/** Topics that every page follows, with their items. */
export interface FixedTopics {
  summary: Summary;
  nodes: NodeRow;
  replicas: ReplicaRow;
  operations: OperationRow;
  loads: LoadRow;
  attention: AttentionItem;
  events: RecordEntry;
}

export type OperationTopic = `operation:${string}`;
export type NodeTopic = `node:${string}`;
export type Topic = keyof FixedTopics | OperationTopic | NodeTopic;

/** What an operation that is not over wants of a node. */
export interface NodeWork {
  readonly operation_id: string;
  readonly verb: string;
  readonly backend: string;
  readonly status: string;
  readonly message: string;
  readonly percentage: number;
  readonly waits_for_node: boolean;
}

/** Items of the topic of one node, by their keys. */
export interface NodeExtras {
  detail: components["schemas"]["NodeDetail"];
  cards: readonly components["schemas"]["CardView"][];
  work: readonly NodeWork[];
  /** Only while it is drained. */
  drain: components["schemas"]["DrainView"];
}

export type ItemOf<T extends Topic> = T extends keyof FixedTopics
  ? FixedTopics[T]
  : T extends OperationTopic
    ? TargetRow
    : NodeExtras[keyof NodeExtras];

/** The permission without which a topic is not sent. */
const PERMISSIONS: Readonly<Record<string, string>> = {
  summary: "fleet.read",
  attention: "fleet.read",
  nodes: "nodes.read",
  node: "nodes.read",
  replicas: "models.read",
  loads: "models.read",
  operations: "operations.read",
  operation: "operations.read",
  events: "audit.read",
};

/** What is followed as long as somebody is signed in. */
export const ALWAYS: readonly Topic[] = ["summary", "attention", "nodes", "replicas", "operations", "loads"];

export function permissionFor(topic: Topic): string {
  return PERMISSIONS[topic.split(":", 1)[0] ?? topic] ?? "fleet.read";
}
