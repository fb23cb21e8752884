/** The address of the page as it is written, for names that may contain anything, slashes and percent signs too. */

import { navigate } from "wouter/use-browser-location";

const BASE = import.meta.env.BASE_URL.replace(/\/$/, "");

/** Goes to a place of the page, such as `/activity/1`. */
export function go(path: string, options: { readonly replace?: boolean } = {}): void {
  navigate(BASE + path, options);
}

/** The encoded segments below a room such as `/models`, from the whole path of the browser. */
export function segmentsBelow(pathname: string, room: string): string[] {
  const start = `${BASE}${room}/`;
  if (!pathname.startsWith(start)) return [];
  return pathname
    .slice(start.length)
    .split("/")
    .filter((segment) => segment !== "");
}

/** What an encoded segment stands for; one that cannot be read stands for itself. */
export function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}
