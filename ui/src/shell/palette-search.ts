/** What the palette finds for a few letters. Pure. */

import { PAGES } from "../pages";

export interface Found {
  readonly name: string;
  /** A word that tells it from others of the same name. */
  readonly note: string;
  readonly href: string;
}

export interface Find extends Found {
  readonly group: string;
}

export interface Group {
  readonly title: string;
  readonly found: readonly Found[];
}

const MOST_OF_A_GROUP = 6;

/** Acts that can be begun from anywhere, with the page on which each begins. */
const ACTS: readonly (Found & { readonly needs: string })[] = [
  { name: "Add a machine", note: "", href: "/join", needs: "nodes.admit" },
  { name: "Install a backend", note: "", href: "/backends?act=install", needs: "backends.act" },
  { name: "Pull a model", note: "", href: "/models?act=pull", needs: "models.act" },
  { name: "Make a key", note: "", href: "/access?act=key", needs: "keys.manage" },
];

export function pagesAndActs(permissions: readonly string[]): Find[] {
  const pages = PAGES.filter((page) => page.rail !== null && page.needs.some((need) => permissions.includes(need)));
  const acts = ACTS.filter((act) => permissions.includes(act.needs));
  return [
    ...acts.map(({ name, note, href }) => ({ group: "Acts", name, note, href })),
    ...pages.map((page) => ({
      group: "Pages",
      name: page.title,
      note: `g ${page.rail?.letter ?? ""}`,
      href: page.path,
    })),
  ];
}

/** Places whose name has all words of the text, those that begin with it first, a few of each group. */
export function find(places: readonly Find[], text: string): Group[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const groups = new Map<string, { place: Find; rank: number }[]>();
  for (const place of places) {
    const rank = rankOf(place, words);
    if (rank === null) continue;
    groups.set(place.group, [...(groups.get(place.group) ?? []), { place, rank }]);
  }
  return [...groups].map(([title, hits]) => ({
    title,
    found: hits
      .sort((one, other) => one.rank - other.rank)
      .slice(0, MOST_OF_A_GROUP)
      .map(({ place }) => place),
  }));
}

function rankOf(place: Find, words: readonly string[]): number | null {
  const name = `${place.name} ${place.note}`.toLowerCase();
  if (!words.every((word) => name.includes(word))) return null;
  return name.startsWith(words[0] ?? "") ? 0 : 1;
}
