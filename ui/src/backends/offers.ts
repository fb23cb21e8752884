/** What galleries offer, as rows of a page: which nodes can use it, and where it is already. Pure. */

import type { Schema } from "../api/client";

export type Offer = Schema<"FleetOfferView">;
type Fit = Schema<"NodesFitView">;

export interface OfferRow {
  readonly offer: Offer;
  readonly fits: number;
  /** Nobody can tell beforehand: it would be sent, and the node decides. */
  readonly unknown: number;
  readonly blocked: number;
  readonly nodes: number;
  readonly installed: number;
  /** Builds for certain hardware that this name stands for. */
  readonly builds: readonly string[];
}

export type OfferFilter = "" | "fits" | "installed";

export function offerRow(offer: Offer): OfferRow {
  const count = (verdict: string) => sum(offer.fits.filter((fit) => fit.verdict === verdict));
  return {
    offer,
    fits: count("fits"),
    unknown: count("unknown"),
    blocked: count("blocked"),
    nodes: sum(offer.fits),
    installed: new Set(offer.fits.flatMap((fit) => fit.installed_on ?? [])).size,
    builds: [...new Set(Object.values(offer.capabilities))].toSorted(),
  };
}

function sum(fits: readonly Fit[]): number {
  return fits.reduce((total, fit) => total + fit.nodes.length, 0);
}

/** "38 of 40 nodes": how many could have it. */
export function fitText(row: OfferRow): string {
  if (row.nodes === 0) return "no nodes yet";
  const noun = row.nodes === 1 ? "node" : "nodes";
  const perhaps = row.unknown > 0 ? `, ${row.unknown} unknown` : "";
  return `${row.fits} of ${row.nodes} ${noun}${perhaps}`;
}

/** Reasons why nodes cannot have it, the commonest first: "2 × no build for its hardware". */
export function obstacles(offer: Offer): readonly { readonly reason: string; readonly nodes: readonly string[] }[] {
  const groups = new Map<string, string[]>();
  for (const fit of offer.fits) {
    if (fit.verdict === "fits") continue;
    const reason = fit.reason || (fit.verdict === "unknown" ? "it cannot be told beforehand" : "it does not fit");
    groups.set(reason, [...(groups.get(reason) ?? []), ...fit.nodes]);
  }
  return [...groups]
    .map(([reason, nodes]) => ({ reason, nodes }))
    .toSorted((one, other) => other.nodes.length - one.nodes.length);
}

export interface OfferQuery {
  readonly text: string;
  readonly tag: string;
  readonly state: OfferFilter;
  /** Also builds for certain hardware, and those under development. */
  readonly isWhole: boolean;
}

/** Rows that fit a search: every word must be in its name, alias, tags or description. */
export function findOffers(rows: readonly OfferRow[], query: OfferQuery): readonly OfferRow[] {
  const words = query.text.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter(
    (row) =>
      (query.isWhole || words.length > 0 || !isDetail(row.offer)) &&
      (query.tag === "" || row.offer.tags.includes(query.tag)) &&
      (query.state !== "fits" || row.fits > 0) &&
      (query.state !== "installed" || row.installed > 0) &&
      words.every((word) => wordsOf(row.offer).includes(word)),
  );
}

function wordsOf(offer: Offer): string {
  return [offer.name, offer.alias, offer.description, ...offer.tags].join("\n").toLowerCase();
}

/** Entries that most people do not look for: a meta backend stands for its builds. */
function isDetail(offer: Offer): boolean {
  return offer.development || (!offer.meta && offer.alias !== "" && offer.alias !== offer.name);
}

export function tagsOf(rows: readonly OfferRow[]): readonly string[] {
  return [...new Set(rows.flatMap((row) => row.offer.tags))].toSorted();
}
