import { describe, expect, test } from "vitest";

import { highlighted } from "../highlighting";
import { blocksOf, codeOf, htmlOf, purified } from "../markdown";

/** The window of these tests loses the first node of what DOMPurify looks at, which browsers do not: here it is a mere frame. */
function drawn(text: string): HTMLElement {
  const frame = document.createElement("div");
  for (const block of blocksOf(text)) frame.append(purified(`<div>${htmlOf(block)}</div>`));
  return frame;
}

describe("markdown", () => {
  test("becomes lists, tables, emphasis and code", () => {
    const frame = drawn("# Title\n\n- **one**\n- `two`\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n```python\nprint(1)\n```");
    expect(frame.querySelector("h3")?.textContent).toBe("Title");
    expect(frame.querySelectorAll("li")).toHaveLength(2);
    expect(frame.querySelector("td")?.textContent).toBe("1");
    expect(frame.querySelector("pre code")?.textContent).toContain("print(1)");
  });

  test.each([
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    'text <b onclick="x()">bold</b>',
    "<svg><g onload=alert(1)></g></svg>",
    "<iframe src='//evil'></iframe>",
    "<style>*{display:none}</style>",
    "<details open ontoggle=alert(1)>x</details>",
  ])("shows the markup of %s as text", (text) => {
    const frame = drawn(text);
    expect(frame.querySelector("img, script, svg, iframe, style, details, b")).toBeNull();
    expect(frame.innerHTML).not.toMatch(/<[^>]*\son\w+=/i);
    expect(frame.textContent).toContain("<");
  });

  test.each([
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    "data:text/html,<script>",
    "vbscript:x",
    "//evil.example",
    "/api/v1/keys",
  ])("makes no link of %s", (address) => {
    expect(drawn(`[click](${address})`).querySelector("a")).toBeNull();
  });

  test("opens links outside, without telling where from, and loads no pictures", () => {
    const frame = drawn("[docs](https://example.org/a) ![cat](https://example.org/cat.png)");
    const links = [...frame.querySelectorAll("a")];
    expect(links.map((link) => link.getAttribute("href"))).toEqual([
      "https://example.org/a",
      "https://example.org/cat.png",
    ]);
    expect(links.every((link) => link.getAttribute("rel") === "noopener noreferrer")).toBe(true);
    expect(frame.querySelector("img")).toBeNull();
  });

  test("keeps its finished blocks while it grows", () => {
    const before = blocksOf("one\n\ntwo\n\nthr").map((block) => block.raw.trim());
    const after = blocksOf("one\n\ntwo\n\nthree and more").map((block) => block.raw.trim());
    expect(after.slice(0, 2)).toEqual(before.slice(0, 2));
  });

  test("knows code and its language, also while it is not closed", () => {
    const [block] = blocksOf("```js title=x\nlet a = 1");
    expect(block && codeOf(block)).toEqual({ text: "let a = 1", language: "js" });
    const [text] = blocksOf("plain");
    expect(text && codeOf(text)).toBeNull();
  });

  test("of any nonsense breaks nothing", () => {
    for (const text of ["", "```", "[", "![](", "|", "> ".repeat(200), "*".repeat(500), "- ".repeat(300)]) drawn(text);
  });
});

test("code is escaped, with or without colours", () => {
  expect(highlighted("<b>&", "")).toBe("&lt;b&gt;&amp;");
  const coloured = purified(`<div>${highlighted("if x < 1:\n  return '<script>'", "python")}</div>`);
  expect(coloured.textContent).toContain("<script>");
  expect(coloured.querySelector("script")).toBeNull();
  expect(coloured.querySelector(".hljs-keyword")).not.toBeNull();
});
