/** Markdown of answers as harmless nodes. Markup that a model writes is shown as text, pictures become links, and whatever
 * the parser makes goes through DOMPurify with a short list of what may stay.
 */

import createDOMPurify from "dompurify";
import { Marked, type Token, type Tokens } from "marked";

import { escaped } from "./escaping";
import { highlighted } from "./highlighting";

const TAGS = [
  ...["p", "br", "hr", "strong", "em", "del", "code", "pre", "span", "blockquote", "a"],
  ...["ul", "ol", "li", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"],
];
const ATTRIBUTES = ["href", "title", "class", "start", "align", "target", "rel"];
const LINKS = /^(?:https?:|mailto:)/i;
/** Headings of an answer are below those of the page. */
const HEADINGS_BELOW = 2;
const DEEPEST = 6;

const marked = new Marked({
  gfm: true,
  breaks: true,
  async: false,
  renderer: {
    html: ({ text }) => escaped(text),
    image: ({ href, text }) => anchor(href, escaped(text || href)),
    link({ href, tokens }) {
      return anchor(href, this.parser.parseInline(tokens));
    },
    heading({ tokens, depth }) {
      const level = Math.min(depth + HEADINGS_BELOW, DEEPEST);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    code: ({ text, lang }) => `<pre><code>${highlighted(text, lang ?? "")}</code></pre>`,
  },
});

function anchor(href: string, content: string): string {
  if (!LINKS.test(href)) return content;
  return `<a href="${escaped(href)}" target="_blank" rel="noopener noreferrer">${content}</a>`;
}

/** The parts of a text that stand one below the other. Those before the last do not change while a text grows. */
export function blocksOf(text: string): Token[] {
  return marked.lexer(text).filter((token) => token.type !== "space" && token.type !== "def");
}

/** The code of a block, or null for a block of another kind. */
export function codeOf(block: Token): { readonly text: string; readonly language: string } | null {
  if (block.type !== "code") return null;
  const { text, lang } = block as Tokens.Code;
  return { text, language: /^\S*/.exec(lang ?? "")?.[0] ?? "" };
}

const purifier = createDOMPurify(window);

/** A block as nodes that can do no harm. */
export function nodesOf(block: Token): DocumentFragment {
  return purified(htmlOf(block));
}

export function htmlOf(block: Token): string {
  return marked.parser([block]);
}

export function purified(html: string): DocumentFragment {
  return purifier.sanitize(html, {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ATTRIBUTES,
    ALLOWED_URI_REGEXP: LINKS,
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  });
}
