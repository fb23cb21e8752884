/** Colours of code, for the languages that people ask models about most. Others are shown plain. */

import highlighter from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import go from "highlight.js/lib/languages/go";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";

import { escaped } from "./escaping";

const LANGUAGES = { bash, cpp, css, go, java, javascript, json, python, rust, sql, typescript, xml, yaml };
for (const [name, language] of Object.entries(LANGUAGES)) highlighter.registerLanguage(name, language);

/** Longer code is shown plain: colours would cost more than they tell. */
const LONGEST = 50_000;

/** Markup of spans with classes; the text itself is escaped. */
export function highlighted(code: string, language: string): string {
  const name = /^[\w+#-]*/.exec(language.toLowerCase())?.[0] ?? "";
  if (code.length > LONGEST || highlighter.getLanguage(name) === undefined) return escaped(code);
  return highlighter.highlight(code, { language: name, ignoreIllegals: true }).value;
}
