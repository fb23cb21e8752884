import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";

const CSS = readFileSync(join(import.meta.dirname, "../../tokens.css"), "utf8");
const SURFACES = ["ground", "surface", "raised", "hover", "selected"];
const INKS = [
  "text",
  "quiet",
  "tone-green",
  "tone-blue",
  "tone-grey",
  "tone-yellow",
  "tone-red",
  "tone-purple",
  "tone-muted",
];
const PAIRS: [string, string][] = [
  ...INKS.flatMap((ink) => SURFACES.map((surface): [string, string] => [ink, surface])),
  ["on-ink", "ink"],
  ["on-danger", "danger"],
];

/** The colours of one block of the file, by name. */
function colours(selector: string): Map<string, string> {
  const start = CSS.indexOf(`${selector} {`);
  const block = CSS.slice(start, CSS.indexOf("}", start));
  return new Map([...block.matchAll(/--([\w-]+): (#[0-9a-f]{6});/g)].map((match) => [match[1] ?? "", match[2] ?? ""]));
}

function luminance(colour: string): number {
  const [red = 0, green = 0, blue = 0] = [1, 3, 5].map((at) => {
    const value = Number.parseInt(colour.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(one: string, other: string): number {
  const [high = 0, low = 0] = [luminance(one), luminance(other)].sort((left, right) => right - left);
  return (high + 0.05) / (low + 0.05);
}

describe.each([":root", ':root[data-theme="dark"]'])("the colours of %s", (selector) => {
  const theme = new Map([...colours(":root"), ...colours(selector)]);

  it.each(PAIRS)("let people read %s on %s", (ink, surface) => {
    expect(contrast(theme.get(ink) ?? "", theme.get(surface) ?? "")).toBeGreaterThanOrEqual(4.5);
  });
});
