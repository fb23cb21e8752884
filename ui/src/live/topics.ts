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
  readonly gpus: number;
  readonly slots: number;
  readonly replicas: readonly ReplicaChip[];
  readonly in_flight: number | null;
  readonly problems: readonly string[];
  readonly pending_since: string | null;
  readonly fingerprint: string;
  readonly draining_by: string;
}

export interface ReplicaRow {
  readonly id: string;
  readonly model: string;
  readonly node_id: string;
  readonly node_name: string;
  readonly state: string;
  readonly in_flight: number | null;
}

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
  readonly bytes: number;
  readonly total_bytes: number;
  readonly bytes_per_second: number;
  readonly seconds_left: number | null;
  readonly message: string;
  readonly is_permanent: boolean;
  readonly retry_in_seconds: number | null;
}

export interface AttentionItem {
  readonly id: string;
  readonly kind: string;
  readonly severity: "alarm" | "warning" | "notice";
  readonly title: string;
  readonly why: string;
  readonly since: string | null;
  readonly subject: {
    readonly type: "node" | "model" | "operation" | "backend" | "fleet";
    readonly id: string;
    readonly name: string;
  };
  readonly act: { readonly label: string; readonly href: string; readonly command: string } | null;
  readonly count: number;
}

export interface Summary {
  readonly nodes: Readonly<Record<string, number>>;
  readonly models: number;
  readonly loaded_models: number;
  readonly replicas: number;
  readonly in_flight: number | null;
  readonly vram: MemoryShare;
  readonly ram: MemoryShare;
  readonly operations: Readonly<Record<string, number>>;
  readonly attention: Readonly<Record<string, number>>;
  readonly brake: string;
  readonly control: "up" | "impaired";
  readonly frontends: number;
  readonly started: {
    readonly has_node: boolean;
    readonly has_backend: boolean;
    readonly has_model: boolean;
    readonly has_answer: boolean;
  };
}

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

/** Something about one node that its row does not tell; its form is that of the page that shows it. */
export type NodeExtra = Readonly<Record<string, unknown>>;

export type ItemOf<T extends Topic> = T extends keyof FixedTopics
  ? FixedTopics[T]
  : T extends OperationTopic
    ? TargetRow
    : NodeExtra;

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
