/** How programs ask a model: code to copy, with this fleet's address and this model's name. Pure. */

export type Use = "chat" | "completion" | "embeddings" | "rerank" | "speech" | "transcription" | "vad";
export type Language = "curl" | "python" | "javascript";

export const LANGUAGES: readonly { readonly language: Language; readonly label: string }[] = [
  { language: "curl", label: "curl" },
  { language: "python", label: "Python" },
  { language: "javascript", label: "JavaScript" },
];

/** What LocalAI's flags of a model mean. */
const USES_OF_FLAGS: Readonly<Record<string, Use>> = {
  FLAG_CHAT: "chat",
  FLAG_COMPLETION: "completion",
  FLAG_EMBEDDINGS: "embeddings",
  FLAG_RERANK: "rerank",
  FLAG_TTS: "speech",
  FLAG_TRANSCRIPT: "transcription",
  FLAG_VAD: "vad",
};

export const USE_NAMES: Readonly<Record<Use, string>> = {
  chat: "Chat",
  completion: "Completion",
  embeddings: "Embeddings",
  rerank: "Rerank",
  speech: "Speech",
  transcription: "Transcription",
  vad: "Voice activity",
};

/** What a model is for, from its flags; a model that says nothing can at least be asked as a chat. */
export function usesOf(flags: readonly string[]): Use[] {
  const uses = flags.flatMap((flag) => USES_OF_FLAGS[flag] ?? []);
  const order = Object.keys(USE_NAMES) as Use[];
  return uses.length === 0 ? ["chat"] : order.filter((use) => uses.includes(use));
}

export interface Asked {
  /** Such as `http://fleet.example:8080`. */
  readonly origin: string;
  readonly model: string;
  readonly use: Use;
}

/** The name of the variable with the key: no key is ever part of the code. Not `CORRAL_KEY`, which commands would use in place
 * of the administrator's key. */
export const KEY_VARIABLE = "MY_APP_KEY";

export function snippet(asked: Asked, language: Language): string {
  switch (language) {
    case "curl":
      return curl(asked);
    case "python":
      return isOfOpenAi(asked.use) ? python(asked) : pythonPlain(asked);
    case "javascript":
      return isOfOpenAi(asked.use) ? javascript(asked) : javascriptPlain(asked);
  }
}

const PATHS: Readonly<Record<Use, string>> = {
  chat: "/v1/chat/completions",
  completion: "/v1/completions",
  embeddings: "/v1/embeddings",
  rerank: "/v1/rerank",
  speech: "/v1/audio/speech",
  transcription: "/v1/audio/transcriptions",
  vad: "/v1/vad",
};

/** Whether OpenAI's own client has a function for it. */
function isOfOpenAi(use: Use): boolean {
  return use !== "rerank" && use !== "vad";
}

/** The body, without the name of the model. */
const BODIES: Readonly<Record<Exclude<Use, "transcription">, Readonly<Record<string, unknown>>>> = {
  chat: { messages: [{ role: "user", content: "Hello!" }] },
  completion: { prompt: "Once upon a time", max_tokens: 64 },
  embeddings: { input: ["A sentence.", "Another one."] },
  rerank: { query: "What is a llama?", documents: ["An animal of the Andes.", "A kind of tea."] },
  speech: { input: "Hello from the fleet." },
  vad: { audio: [0, 0.1, -0.1] },
};

function bodyOf(asked: Asked, more: Readonly<Record<string, unknown>> = {}): Record<string, unknown> {
  const body = asked.use === "transcription" ? {} : BODIES[asked.use];
  return { model: asked.model, ...body, ...more };
}

function curl(asked: Asked): string {
  const head = [`curl ${shell(asked.origin + PATHS[asked.use])}`, `-H "Authorization: Bearer $${KEY_VARIABLE}"`];
  if (asked.use === "transcription")
    return [...head, "-F file=@speech.wav", `-F ${shell(`model=${asked.model}`)}`].join(CONTINUED);
  const json = ["-H 'Content-Type: application/json'", `-d ${shell(JSON.stringify(bodyOf(asked)))}`];
  const output = asked.use === "speech" ? ["-o speech.wav"] : [];
  return [...head, ...json, ...output].join(CONTINUED);
}

const CONTINUED = " \\\n  ";

/** A word for a POSIX shell that means exactly this text. */
export function shell(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** A text as a literal; what JSON writes, Python and JavaScript read. */
function literal(text: string): string {
  return JSON.stringify(text);
}

function python(asked: Asked): string {
  return [
    "import os",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${literal(`${asked.origin}/v1`)}, api_key=os.environ["${KEY_VARIABLE}"])`,
    ...PYTHON_CALLS[asked.use as keyof typeof PYTHON_CALLS](literal(asked.model)),
  ].join("\n");
}

const PYTHON_CALLS = {
  chat: (model: string) => [
    "stream = client.chat.completions.create(",
    `    model=${model},`,
    '    messages=[{"role": "user", "content": "Hello!"}],',
    "    stream=True,",
    ")",
    "for chunk in stream:",
    '    print(chunk.choices[0].delta.content or "", end="", flush=True)',
  ],
  completion: (model: string) => [
    `answer = client.completions.create(model=${model}, prompt="Once upon a time", max_tokens=64)`,
    "print(answer.choices[0].text)",
  ],
  embeddings: (model: string) => [
    `answer = client.embeddings.create(model=${model}, input=["A sentence.", "Another one."])`,
    "print(len(answer.data[0].embedding))",
  ],
  speech: (model: string) => [
    `answer = client.audio.speech.create(model=${model}, voice="", input="Hello from the fleet.")`,
    'answer.write_to_file("speech.wav")',
  ],
  transcription: (model: string) => [
    'with open("speech.wav", "rb") as file:',
    `    answer = client.audio.transcriptions.create(model=${model}, file=file)`,
    "print(answer.text)",
  ],
} as const;

function pythonPlain(asked: Asked): string {
  return [
    "import json, os, urllib.request",
    "",
    "request = urllib.request.Request(",
    `    ${literal(asked.origin + PATHS[asked.use])},`,
    `    data=json.dumps(${JSON.stringify(bodyOf(asked))}).encode(),`,
    `    headers={"Authorization": "Bearer " + os.environ["${KEY_VARIABLE}"], "Content-Type": "application/json"},`,
    ")",
    "print(json.load(urllib.request.urlopen(request)))",
  ].join("\n");
}

function javascript(asked: Asked): string {
  return [
    'import OpenAI from "openai";',
    ...(asked.use === "transcription" ? ['import { createReadStream } from "node:fs";'] : []),
    ...(asked.use === "speech" ? ['import { writeFile } from "node:fs/promises";'] : []),
    "",
    `const client = new OpenAI({ baseURL: ${literal(`${asked.origin}/v1`)}, apiKey: process.env.${KEY_VARIABLE} });`,
    ...JAVASCRIPT_CALLS[asked.use as keyof typeof JAVASCRIPT_CALLS](literal(asked.model)),
  ].join("\n");
}

const JAVASCRIPT_CALLS = {
  chat: (model: string) => [
    "const stream = await client.chat.completions.create({",
    `  model: ${model},`,
    '  messages: [{ role: "user", content: "Hello!" }],',
    "  stream: true,",
    "});",
    'for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");',
  ],
  completion: (model: string) => [
    `const answer = await client.completions.create({ model: ${model}, prompt: "Once upon a time", max_tokens: 64 });`,
    "console.log(answer.choices[0].text);",
  ],
  embeddings: (model: string) => [
    `const answer = await client.embeddings.create({ model: ${model}, input: ["A sentence.", "Another one."] });`,
    "console.log(answer.data[0].embedding.length);",
  ],
  speech: (model: string) => [
    `const answer = await client.audio.speech.create({ model: ${model}, voice: "", input: "Hello from the fleet." });`,
    'await writeFile("speech.wav", Buffer.from(await answer.arrayBuffer()));',
  ],
  transcription: (model: string) => [
    `const answer = await client.audio.transcriptions.create({ model: ${model}, file: createReadStream("speech.wav") });`,
    "console.log(answer.text);",
  ],
} as const;

function javascriptPlain(asked: Asked): string {
  return [
    `const answer = await fetch(${literal(asked.origin + PATHS[asked.use])}, {`,
    '  method: "POST",',
    `  headers: { Authorization: \`Bearer \${process.env.${KEY_VARIABLE}}\`, "Content-Type": "application/json" },`,
    `  body: JSON.stringify(${JSON.stringify(bodyOf(asked))}),`,
    "});",
    "console.log(await answer.json());",
  ].join("\n");
}
