/** Names that the live stream does not carry, asked for when the palette opens. */

import { answer, api } from "../api/client";

export async function modelNames(): Promise<string[]> {
  const page = await answer(api.GET("/api/v1/models"));
  return page.items.map((model) => model.name);
}

export async function backendNames(): Promise<string[]> {
  const page = await answer(api.GET("/api/v1/backends"));
  return [...new Set(page.items.map((backend) => backend.name))];
}
