import { expect, test } from "vitest";

import { gpuText } from "../hardware";

test.each([
  ["default", 0, "no GPU"],
  ["default", null, "no GPU"],
  ["", null, "no GPU"],
  ["nvidia", 8, "nvidia, 8 GPUs"],
  ["amd", 1, "amd, 1 GPU"],
  ["metal", null, "metal"],
  ["default", 2, "2 GPUs"],
])("a machine with the capability %j and %j GPUs", (capability, gpus, text) => {
  expect(gpuText({ capability, gpus })).toBe(text);
});
