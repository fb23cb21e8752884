import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

import { licences } from "./tooling/licences.ts";
import { onlyEnglish } from "./tooling/only-english.ts";

/** Packages that change together and rarely: a change of the page alone moves none of these files. */
const VENDORS: readonly { name: string; test: RegExp }[] = [
  { name: "vendor-plot", test: /node_modules\/uplot\// },
  { name: "vendor-text", test: /node_modules\/(marked|dompurify|highlight\.js)\// },
  { name: "vendor-react", test: /node_modules\/(react|react-dom|scheduler)\// },
  { name: "vendor-data", test: /node_modules\/(@tanstack|wouter|regexparam|openapi-fetch|mitt)\// },
  { name: "vendor-aria", test: /node_modules\// },
];

/** What pages are made of, as one file and one style sheet instead of one for each part: the first page needs most of them. The sheets
 * that hold for all elements come first in it. What draws plots is apart, since it brings its package. */
const PARTS = { name: "parts", test: /\/src\/((parts|api|live)\/(?!plot-canvas)|(tokens|base)\.css)/, priority: 1 };

/** A page is called by its room: `src/fleet/page.tsx` becomes `fleet-….js`. */
function roomOf(module: string | null): string | null {
  return /\/src\/(\w+)\/page\.tsx$/.exec(module ?? "")?.[1] ?? null;
}

const FLEET = process.env["CORRAL_URL"] ?? "http://127.0.0.1:8080";

export default defineConfig({
  base: "/ui/",
  plugins: [react(), onlyEnglish(), licences()],
  build: {
    target: "es2023",
    sourcemap: false,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    rolldownOptions: {
      output: {
        codeSplitting: { groups: [...VENDORS.map((vendor) => ({ ...vendor, priority: 2 })), PARTS] },
        entryFileNames: "assets/[name]-[hash].js",
        chunkFileNames: ({ facadeModuleId, name }) => `assets/${roomOf(facadeModuleId) ?? name}-[hash].js`,
        assetFileNames: "assets/[name]-[hash][extname]",
      },
    },
  },
  server: {
    // Host and Origin stay what the browser sent: the server compares them.
    proxy: Object.fromEntries(["/api", "/v1", "/readyz", "/healthz"].map((path) => [path, { target: FLEET }])),
  },
  test: { environment: "happy-dom", include: ["src/**/*.test.{ts,tsx}"] },
});
