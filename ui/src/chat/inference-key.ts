/** The short-lived key with which the page asks models: the gateway that answers them knows keys, not cookies. */

export interface FreshKey {
  readonly key: string;
  readonly expires_at: string;
}

/** A key that ends sooner is not used any more: an answer must not lose its key on the way to the gateway. */
const MARGIN_MILLISECONDS = 60_000;

export class InferenceKeys {
  private current: FreshKey | null = null;
  private pending: Promise<FreshKey> | null = null;

  /** `fetchKey` makes a new key, `now` is the server's time in milliseconds. */
  constructor(
    private readonly fetchKey: () => Promise<FreshKey>,
    private readonly now: () => number,
  ) {}

  /** A key that is valid for at least a minute. Those who ask at the same time share one. */
  async get(): Promise<string> {
    if (this.current !== null && this.isFresh(this.current)) return this.current.key;
    return this.renew();
  }

  /** A new key, after a gateway refused the last one. */
  async renew(): Promise<string> {
    this.pending ??= this.fetchKey().finally(() => {
      this.pending = null;
    });
    this.current = await this.pending;
    return this.current.key;
  }

  /** Forgets the key: whoever signs in next may ask other models. */
  forget(): void {
    this.current = null;
  }

  private isFresh(key: FreshKey): boolean {
    return Date.parse(key.expires_at) - this.now() > MARGIN_MILLISECONDS;
  }
}
