/** The page speaks English only, and so do its packages.
 *
 * React Aria's translations are left out: they would be a tenth of the page. uPlot asks the browser for its language
 * when it is loaded, and fails in browsers of servers, whose language has a name that no standard knows.
 */

import type { Plugin } from "vite";

const TRANSLATION =
  /node_modules\/(?:react-aria|react-stately|react-aria-components|@react-\w+\/[\w-]+)\/.*\/([a-z]{2}-[A-Z]{2})\.m?js$/;
const UPLOT = /node_modules\/uplot\/dist\/uPlot\.esm\.js$/;
const LANGUAGE_OF_BROWSER = "domEnv ? nav.language : 'en-US'";

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
    transform(code, id) {
      if (!UPLOT.test(id)) return null;
      if (!code.includes(LANGUAGE_OF_BROWSER))
        this.error("uPlot asks for the language of the browser in another way now");
      return { code: code.replace(LANGUAGE_OF_BROWSER, "'en-US'"), map: null };
    },
  };
}
