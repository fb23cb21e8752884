/** What fills each GPU of a node: what is used, what placement reserved there, and for whom. Pure. */

import type { Schema } from "../api/client";
import type { Share } from "../parts/bar";
import { bytes } from "../parts/format";

export interface CardFacts {
  readonly id: string;
  readonly total: number;
  readonly free: number;
  /** Replicas that may use it, as `model#index`. */
  readonly replicas?: readonly string[];
}

export interface CardReplica {
  readonly node_id: string;
  readonly model: string;
  readonly index: number;
  readonly vram: number;
  readonly cards: readonly string[];
}

export interface CardUser {
  readonly name: string;
  /** What placement counts for it on this GPU; null where that is not known. */
  readonly reserved: number | null;
}

export interface CardUse<Card> {
  readonly card: Card;
  readonly share: Share;
  readonly users: readonly CardUser[];
}

/** "GPU 0 L40S": two GPUs of one kind are told apart by their numbers, where the node tells them. */
export function cardName({ id, index, name }: Pick<Schema<"CardView">, "id" | "name" | "index">): string {
  const kind = name || id;
  return index === null || index === undefined ? kind : `GPU ${index} ${kind}`;
}

/** A replica that may use several GPUs is counted in equal parts, as placement does. */
export function cardUses<Card extends CardFacts>(
  nodeId: string,
  cards: readonly Card[],
  replicas: Iterable<CardReplica>,
): readonly CardUse<Card>[] {
  const here = [...replicas].filter((replica) => replica.node_id === nodeId && replica.cards.length > 0);
  const byName = new Map(here.map((replica) => [`${replica.model}#${replica.index}`, replica]));
  return cards.map((card) => {
    const users = (card.replicas ?? []).map((name) => ({ name, reserved: partOn(card.id, byName.get(name)) }));
    const reserved = users.reduce((sum, user) => sum + (user.reserved ?? 0), 0);
    return { card, users, share: { total: card.total, used: Math.max(0, card.total - card.free), reserved } };
  });
}

function partOn(card: string, replica: CardReplica | undefined): number | null {
  if (replica === undefined || !replica.cards.includes(card)) return null;
  return Math.ceil(replica.vram / replica.cards.length);
}

/** Who fills it, in words: "used by chat#0 (210 MiB reserved)". */
export function usersText({ users }: { readonly users: readonly CardUser[] }): string {
  if (users.length === 0) return "no replica may use it now";
  return `used by ${users.map(({ name, reserved }) => (reserved ? `${name} (${bytes(reserved)} reserved)` : name)).join(", ")}`;
}
