/** The API as functions: `await answer(api.GET("/api/v1/nodes"))` gives the typed body, or throws an ApiError. */

import createClient from "openapi-fetch";

import { errorOf } from "./errors";
import type { components, paths } from "./schema.gen";
import { send } from "./transport";

export const api = createClient<paths>({ baseUrl: window.location.origin, fetch: send });

/** A struct of the API by its name. */
export type Schema<Name extends keyof components["schemas"]> = components["schemas"][Name];

interface Outcome<Data> {
  readonly data?: Data;
  readonly error?: unknown;
  readonly response: Response;
}

/** The body of a good answer; an ApiError with the server's sentence otherwise. */
export async function answer<Data>(call: Promise<Outcome<Data>>): Promise<Data> {
  const { data, error, response } = await call;
  if (!response.ok) throw errorOf(response.status, error, response.headers.get("X-Request-ID") ?? "");
  return data as Data;
}

/** A route that the generated types do not describe, with the form that the caller expects. */
export async function ask<Data>(method: string, path: string, body?: unknown): Promise<Data> {
  const request = new Request(new URL(path, window.location.origin), {
    method,
    headers: { Accept: "application/json", ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  const response = await send(request);
  const content: unknown = await contentOf(response);
  if (!response.ok) throw errorOf(response.status, content, response.headers.get("X-Request-ID") ?? "");
  return content as Data;
}

async function contentOf(response: Response): Promise<unknown> {
  const text = await response.text();
  try {
    return text === "" ? null : JSON.parse(text);
  } catch {
    return text;
  }
}
