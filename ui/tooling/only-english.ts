/** Leaves out React Aria's translations: the page itself speaks English only, and they would be a tenth of it. */

import type { Plugin } from "vite";

const TRANSLATION =
  /node_modules\/(?:react-aria|react-stately|react-aria-components|@react-\w+\/[\w-]+)\/.*\/([a-z]{2}-[A-Z]{2})\.m?js$/;

export function onlyEnglish(): Plugin {
  return {
    name: "corral-only-english",
    enforce: "pre",
    load(id) {
      const file = id.split("?", 1)[0] ?? id;
      const language = TRANSLATION.exec(file)?.[1];
      if (language === undefined || language === "en-US") return null;
      return `export { default } from "./en-US${file.endsWith(".mjs") ? ".mjs" : ".js"}";`;
    },
  };
}
