/** The commands that a new machine runs. No secret is ever a word of a command: other users could read it there. Pure. */

import { shellQuote } from "../parts/shell-words";

export type Worker = "corral" | "localai";
export type System = "linux" | "macos" | "container";
export type Gpu = "none" | "nvidia" | "amd" | "intel" | "apple";

export interface Invitation {
  readonly code: string;
  readonly pin: string;
}

/** Joins with one paste: the code goes through a pipe, so it is in no list of processes. */
export function joinCommand(url: string, { code, pin }: Invitation): string {
  return `echo ${code} | ${askingCommand(url, pin)} --code-descriptor 0`;
}

/** Fetches everything into the folder, as any user, makes `corral` a word that the shell knows, and joins: one paste. */
export function setupCommand(url: string, invitation: Invitation): string {
  return ["python3 tools/bootstrap.py setup", 'export PATH="$PWD/.venv/bin:$PATH"', joinCommand(url, invitation)].join(
    " && ",
  );
}

/** Joins and asks for the code: for a screen that one cannot paste into, and for those who keep codes out of history. */
export function askingCommand(url: string, pin: string): string {
  return `corral worker --join ${shellQuote(`${url}#${pin}`)}`;
}

/** Tells what would fail, and changes nothing; the code is not used up. */
export function checkCommand(url: string, { code, pin }: Invitation): string {
  return `echo ${code} | ${askingCommand(url, pin)} --code-descriptor 0 --check`;
}

export interface LocalAiPlace {
  readonly url: string;
  readonly nats: readonly string[];
  readonly system: System;
  readonly gpu: Gpu;
}

const TOKEN = "LOCALAI_REGISTRATION_TOKEN";
/** Typed without being shown, and on the line that starts the worker: a paste of several lines must not answer it. */
const ASK_TOKEN = `printf 'Registration token: ' && stty -echo && read -r ${TOKEN}; stty echo; export ${TOKEN}`;

const OWN_ADDRESS: Readonly<Record<System, string>> = {
  linux: "$(hostname -I | cut -d' ' -f1)",
  container: "$(hostname -I | cut -d' ' -f1)",
  macos: "$(ipconfig getifaddr en0)",
};

/** Starts a worker of LocalAI's. The shared token is typed: pasted with the command it would stay in the history. */
export function localAiCommand(place: LocalAiPlace): string {
  const settings = [
    `LOCALAI_REGISTER_TO=${shellQuote(place.url)}`,
    `LOCALAI_NATS_URL=${shellQuote(place.nats.join(",") || "nats://HOST:4222")}`,
    "LOCALAI_NATS_REQUIRE_AUTH=true",
    `LOCALAI_ADDR="${OWN_ADDRESS[place.system]}:50051"`,
  ];
  const names = settings.map((line) => line.slice(0, line.indexOf("=")));
  return [...settings.map((line) => `export ${line}`), `${ASK_TOKEN}; ${workerCommand(place, names)}`].join("\n");
}

const IMAGES: Readonly<Record<Gpu, string>> = {
  none: "localai/localai:latest",
  apple: "localai/localai:latest",
  nvidia: "localai/localai:latest-gpu-nvidia-cuda-12",
  amd: "localai/localai:latest-gpu-hipblas",
  intel: "localai/localai:latest-gpu-intel",
};

const DEVICES: Readonly<Record<Gpu, string>> = {
  none: "",
  apple: "",
  nvidia: "--gpus all ",
  amd: "--device /dev/kfd --device /dev/dri ",
  intel: "--device /dev/dri ",
};

function workerCommand({ system, gpu }: LocalAiPlace, names: readonly string[]): string {
  if (system !== "container") return "local-ai worker";
  // A name without a value is taken from the shell, so that no value is a word of the command.
  const passed = [TOKEN, ...names].map((name) => `-e ${name}`).join(" ");
  return `docker run --network host ${DEVICES[gpu]}${passed} ${IMAGES[gpu]} worker`;
}

/** GPUs that a machine of this kind can have. */
export function gpusOf(system: System): readonly Gpu[] {
  return system === "macos" ? ["apple", "none"] : ["none", "nvidia", "amd", "intel"];
}

/** Corral runs from its own folder on the machine; LocalAI's workers may be in a container. */
export function systemsOf(worker: Worker): readonly System[] {
  return worker === "corral" ? ["linux", "macos"] : ["linux", "container", "macos"];
}

/** What must be there before the worker sees the GPU; empty where nothing is needed. */
export function gpuHint(gpu: Gpu): string {
  return GPU_HINTS[gpu];
}

const GPU_HINTS: Readonly<Record<Gpu, string>> = {
  none: "",
  nvidia: "The NVIDIA driver must be installed: nvidia-smi lists the cards.",
  amd: "The amdgpu driver must be loaded; ROCm is needed by most backends.",
  intel: "The i915 or xe driver must be loaded, and /dev/dri readable.",
  apple: "Nothing to install: Metal is part of macOS.",
};
