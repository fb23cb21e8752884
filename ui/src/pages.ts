/** Every page: where it is, what it is called, who may see it. Rooms own everything below their path. */

import { type ComponentType, type LazyExoticComponent, lazy } from "react";

import type { IconName } from "./parts/icons";

export interface Page {
  /** The first part of the path below `/ui`, and the name of the room in `src/`. */
  readonly path: string;
  readonly title: string;
  /** Shown in the rail, with the key that follows `g`. */
  readonly rail: { readonly letter: string; readonly icon: IconName } | null;
  /** Any of these permissions opens it. */
  readonly needs: readonly string[];
  readonly load: () => Promise<{ default: ComponentType }>;
  readonly component: LazyExoticComponent<ComponentType>;
}

const ROOMS: readonly Omit<Page, "component">[] = [
  {
    path: "/fleet",
    title: "Fleet",
    rail: { letter: "f", icon: "fleet" },
    needs: ["fleet.read"],
    load: () => import("./fleet/page"),
  },
  {
    path: "/models",
    title: "Models",
    rail: { letter: "m", icon: "models" },
    needs: ["models.read", "models.list"],
    load: () => import("./models/page"),
  },
  {
    path: "/backends",
    title: "Backends",
    rail: { letter: "b", icon: "backends" },
    needs: ["backends.read"],
    load: () => import("./backends/page"),
  },
  {
    path: "/activity",
    title: "Activity",
    rail: { letter: "a", icon: "activity" },
    needs: ["operations.read"],
    load: () => import("./activity/page"),
  },
  {
    path: "/chat",
    title: "Chat",
    rail: { letter: "c", icon: "chat" },
    needs: ["inference"],
    load: () => import("./chat/page"),
  },
  {
    path: "/rules",
    title: "Rules",
    rail: { letter: "r", icon: "rules" },
    needs: ["rules.read", "scheduling.read"],
    load: () => import("./rules/page"),
  },
  {
    path: "/access",
    title: "Access",
    rail: { letter: "s", icon: "access" },
    needs: ["keys.manage", "users.manage", "nodes.admit", "audit.read"],
    load: () => import("./access/page"),
  },
  {
    path: "/nodes",
    title: "Node",
    rail: null,
    needs: ["nodes.read"],
    load: () => import("./node/page"),
  },
  {
    path: "/join",
    title: "Add a machine",
    rail: null,
    needs: ["nodes.admit"],
    load: () => import("./join/page"),
  },
];

export const PAGES: readonly Page[] = ROOMS.map((room) => ({ ...room, component: lazy(room.load) }));

/** The page that a path below `/ui` leads to; for the bare address the first one. */
export function pageAt(path: string): Page | undefined {
  const first = `/${path.split("/")[1] ?? ""}`;
  return first === "/" ? PAGES[0] : PAGES.find((page) => page.path === first);
}
