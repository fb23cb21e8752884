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
  readonly component: LazyExoticComponent<ComponentType>;
}

export const PAGES: readonly Page[] = [
  {
    path: "/fleet",
    title: "Fleet",
    rail: { letter: "f", icon: "fleet" },
    needs: ["fleet.read"],
    component: lazy(() => import("./fleet/page")),
  },
  {
    path: "/models",
    title: "Models",
    rail: { letter: "m", icon: "models" },
    needs: ["models.read", "models.list"],
    component: lazy(() => import("./models/page")),
  },
  {
    path: "/backends",
    title: "Backends",
    rail: { letter: "b", icon: "backends" },
    needs: ["backends.read"],
    component: lazy(() => import("./backends/page")),
  },
  {
    path: "/activity",
    title: "Activity",
    rail: { letter: "a", icon: "activity" },
    needs: ["operations.read"],
    component: lazy(() => import("./activity/page")),
  },
  {
    path: "/chat",
    title: "Chat",
    rail: { letter: "c", icon: "chat" },
    needs: ["inference"],
    component: lazy(() => import("./chat/page")),
  },
  {
    path: "/rules",
    title: "Rules",
    rail: { letter: "r", icon: "rules" },
    needs: ["rules.read", "scheduling.read"],
    component: lazy(() => import("./rules/page")),
  },
  {
    path: "/access",
    title: "Access",
    rail: { letter: "s", icon: "access" },
    needs: ["keys.manage", "users.manage", "nodes.admit", "audit.read"],
    component: lazy(() => import("./access/page")),
  },
  {
    path: "/nodes",
    title: "Node",
    rail: null,
    needs: ["nodes.read"],
    component: lazy(() => import("./node/page")),
  },
  {
    path: "/join",
    title: "Add a machine",
    rail: null,
    needs: ["nodes.admit"],
    component: lazy(() => import("./join/page")),
  },
];
