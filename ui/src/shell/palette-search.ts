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
  /** Shown only to those who look for it: there is one for each of many things. */
  readonly isSought?: boolean;
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

export interface Named {
  readonly nodes: readonly { readonly id: string; readonly name: string; readonly status: string }[];
  readonly models: readonly string[];
  readonly backends: readonly string[];
}

/** Acts on what has a name. Each opens the dialog of its page, which shows the plan first. */
export function actsOn({ nodes, models, backends }: Named, permissions: readonly string[]): Find[] {
  const may = (permission: string) => permissions.includes(permission);
  const act = (verb: string, name: string, href: string): Find => ({
    group: "Acts on these",
    name: `${verb} ${name}`,
    note: "",
    href,
    isSought: true,
  });
  const onNode = (id: string, word: string) => `/nodes/${encodeURIComponent(id)}?act=${word}`;
  const onModel = (name: string, word: string) => `/models/${encodeURIComponent(name)}?act=${word}`;
  const found = [
    ...nodes.flatMap(({ id, name, status }) => [
      may("nodes.act") && status !== "draining" && status !== "pending" && act("Drain", name, onNode(id, "drain")),
      may("nodes.admit") && act("Remove", name, onNode(id, "remove")),
    ]),
    ...models.flatMap((name) => [
      may("inference") && act("Chat with", name, `/chat?model=${encodeURIComponent(name)}`),
      may("scheduling.act") && act("Scale", name, onModel(name, "scale")),
      may("models.act") && act("Remove", name, onModel(name, "remove")),
    ]),
    ...backends.map(
      (name) => may("backends.act") && act("Delete", name, `/backends?act=delete&on=${encodeURIComponent(name)}`),
    ),
  ];
  return found.filter((each) => each !== false);
}

/** Places whose name has all words of the text, those that begin with it first, a few of each group. */
export function find(places: readonly Find[], text: string): Group[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const groups = new Map<string, { place: Find; rank: number }[]>();
  for (const place of places) {
    if (place.isSought === true && words.length === 0) continue;
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
