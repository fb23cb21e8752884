/** Lines of the plots: series of many models added up to one. Pure. */

import type { Series } from "../parts/plot";

interface Told {
  readonly name: string;
  readonly values: readonly (number | null)[];
}

/** The sum of all series of one name; null where none of them knows a value. None for a name that nobody told. */
export function sumOf(series: readonly Told[], name: string, label: string): Series[] {
  const named = series.filter((one) => one.name === name);
  const first = named[0];
  if (first === undefined) return [];
  const values = first.values.map((_, index) => {
    const there = named.map((one) => one.values[index] ?? null).filter((value) => value !== null);
    return there.length === 0 ? null : there.reduce((sum, value) => sum + value, 0);
  });
  return [{ name: label, values }];
}
