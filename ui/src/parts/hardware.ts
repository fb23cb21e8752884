/** What a machine has to compute with, in words. */

import { plural } from "./format";

/** The capability of a machine without a GPU that builds are made for. */
const NO_GPU = "default";

/** The kind of GPU and how many there are: "nvidia, 8 GPUs"; "no GPU" where there is none. */
export function gpuText(node: { readonly capability: string; readonly gpus: number | null }): string {
  const kind = node.capability === NO_GPU ? "" : node.capability;
  const gpus = node.gpus ? plural(node.gpus, "GPU") : "";
  return [kind, gpus].filter((part) => part !== "").join(", ") || "no GPU";
}
