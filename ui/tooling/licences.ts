/** Writes THIRD_PARTY_LICENSES beside the page: the licence of every package of which something was built in. */

import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Plugin } from "vite";

const FILE = "THIRD_PARTY_LICENSES";
const PACKAGE = /^(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//;

export function licences(): Plugin {
  return {
    name: "corral-licences",
    apply: "build",
    generateBundle(_options, bundle) {
      const folders = new Set<string>();
      for (const output of Object.values(bundle)) {
        for (const module of output.type === "chunk" ? output.moduleIds : []) {
          const folder = packageFolder(module);
          if (folder !== null) folders.add(folder);
        }
      }
      const texts = [...folders].map(licenceOf).sort();
      this.emitFile({ type: "asset", fileName: FILE, source: texts.join(`\n${"=".repeat(80)}\n\n`) });
    },
  };
}

function packageFolder(module: string): string | null {
  return PACKAGE.exec(module.replace(/^\0/, ""))?.[1] ?? null;
}

function licenceOf(folder: string): string {
  const facts = JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as {
    name: string;
    version: string;
    license?: string;
  };
  const head = `${facts.name} ${facts.version} (${facts.license ?? "see below"})\n`;
  const file = readdirSync(folder).find((name) => /^(licen[cs]e|copying)/i.test(name));
  const path = file === undefined ? "" : join(folder, file);
  return path !== "" && existsSync(path) ? `${head}\n${readFileSync(path, "utf8").trim()}\n` : head;
}
