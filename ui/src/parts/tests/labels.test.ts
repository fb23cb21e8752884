import { describe, expect, it } from "vitest";

import { hasLabels, labelText, readLabels, tellingLabels } from "../labels";

describe("labels", () => {
  it("are read with blanks or commas between them", () => {
    expect(readLabels(" zone=a,  gpu.vendor=nvidia ").labels).toEqual({ zone: "a", "gpu.vendor": "nvidia" });
  });

  it("may have an equals sign in the value, and an empty value", () => {
    expect(readLabels("a=b=c d=").labels).toEqual({ a: "b=c", d: "" });
  });

  it("name the word that is none", () => {
    expect(readLabels("zone=a rack").problem).toContain("“rack”");
    expect(readLabels("=a").problem).toContain("“=a”");
  });

  it("are written so that they can be read again", () => {
    const labels = { zone: "a", rack: "7" };
    expect(labelText(labels)).toBe("rack=7 zone=a");
    expect(readLabels(labelText(labels)).labels).toEqual(labels);
  });

  it("match a node that has all of them, and every node when there are none", () => {
    expect(hasLabels({ zone: "a", rack: "7" }, { zone: "a" })).toBe(true);
    expect(hasLabels({ zone: "b" }, { zone: "a" })).toBe(false);
    expect(hasLabels({}, {})).toBe(true);
  });

  it("that tell nodes apart leave out what all have, and the names of nodes", () => {
    const nodes = [
      { labels: { "node.name": "a", zone: "a", site: "home" } },
      { labels: { "node.name": "b", zone: "a", site: "home" } },
      { labels: { "node.name": "c", zone: "b", site: "home" } },
    ];
    expect(tellingLabels(nodes)).toEqual([
      { text: "zone=a", count: 2 },
      { text: "zone=b", count: 1 },
    ]);
  });
});
