/** A link to another place of the page. Its address begins below `/ui`, wherever the link stands. */

import type { ComponentProps, ReactNode } from "react";
import { Link } from "wouter";

const BASE = "~/ui";

type Rest = Omit<ComponentProps<"a">, "href">;

export function PageLink({ href, children, ...rest }: Rest & { href: string; children: ReactNode }) {
  return (
    <Link href={`${BASE}${href}`} {...rest}>
      {children}
    </Link>
  );
}

/** Addresses of things, so that no page has to know how another one names them. */
export const addressOf = {
  node: (id: string) => `/nodes/${encodeURIComponent(id)}`,
  operation: (id: string) => `/activity/${encodeURIComponent(id)}`,
  model: (name: string) => `/models/${encodeURIComponent(name)}`,
  backend: (name: string) => `/backends/${encodeURIComponent(name)}`,
};
