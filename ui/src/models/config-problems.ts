/** What the server says about a configuration, with the line and the key that it is about. Pure. */

export interface ConfigProblem {
  /** From 1; null where the sentence names none. */
  readonly line: number | null;
  /** Such as `parameters.model`; empty where the sentence names none. */
  readonly key: string;
  readonly text: string;
}

const LEADING_FIELD = /^config: /;
const LEADING_LINE = /^line (\d+): /;
const INNER_LINE = /\bin line (\d+)\b/;
const LEADING_KEY = /^([A-Za-z_][\w-]*(?:\.[\w-]+)*): /;

/** Reads `config: line 3: parameters.model: is missing` and its relatives. */
export function problemOf(sentence: string): ConfigProblem {
  const whole = sentence.replace(LEADING_FIELD, "");
  const leading = LEADING_LINE.exec(whole);
  const rest = leading === null ? whole : whole.slice(leading[0].length);
  const key = LEADING_KEY.exec(rest);
  const line = leading?.[1] ?? INNER_LINE.exec(rest)?.[1];
  return {
    line: line === undefined ? null : Number(line),
    key: key?.[1] ?? "",
    text: key === null ? rest : rest.slice(key[0].length),
  };
}

/** Where a line begins and ends in a text, so that it can be selected; null for a line that is not there. */
export function lineRange(text: string, line: number): { readonly start: number; readonly end: number } | null {
  if (line < 1) return null;
  let start = 0;
  for (let passed = 1; passed < line; passed += 1) {
    const next = text.indexOf("\n", start);
    if (next < 0) return null;
    start = next + 1;
  }
  const end = text.indexOf("\n", start);
  return { start, end: end < 0 ? text.length : end };
}
