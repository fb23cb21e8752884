/** A storage for tests, with as much room as they say. */

import type { TextStorage } from "../talk-storage";

export class MemoryStorage implements TextStorage {
  readonly entries = new Map<string, string>();

  constructor(private readonly room = Number.POSITIVE_INFINITY) {}

  get length(): number {
    return this.entries.size;
  }

  key(index: number): string | null {
    return [...this.entries.keys()][index] ?? null;
  }

  getItem(key: string): string | null {
    return this.entries.get(key) ?? null;
  }

  setItem(key: string, value: string): void {
    const others = [...this.entries].reduce((sum, [name, text]) => (name === key ? sum : sum + text.length), 0);
    if (others + value.length > this.room) throw new DOMException("full", "QuotaExceededError");
    this.entries.set(key, value);
  }

  removeItem(key: string): void {
    this.entries.delete(key);
  }
}
