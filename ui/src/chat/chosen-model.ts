/** Which model a page tries: the one that was chosen, else the one that the address names, else the first. */

import { useState } from "react";

import { useFilters } from "../parts/filters";

export function useChosenModel(models: readonly string[]): [string, (model: string) => void] {
  const named = useFilters().get("model");
  const [chosen, setChosen] = useState("");
  const model = [chosen, named].find((name) => models.includes(name)) ?? models[0] ?? "";
  return [model, setChosen];
}
