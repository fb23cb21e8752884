/** What is said in a sound. */

import { useState } from "react";

import { bytes } from "../parts/format";
import { useChosenModel } from "./chosen-model";
import styles from "./try.module.css";
import { TryFrame } from "./try-frame";
import { useTry } from "./trying";

const ROUTE = "/v1/audio/transcriptions";

export function TryTranscription({ models }: { models: readonly string[] }) {
  const [model, setModel] = useChosenModel(models);
  const [file, setFile] = useState<File | null>(null);
  const trying = useTry<string>();
  const send = () => {
    if (file === null) return;
    const form = new FormData();
    form.set("model", model);
    form.set("file", file);
    trying.ask(ROUTE, form, readText);
  };
  return (
    <TryFrame
      title="Transcription"
      route={ROUTE}
      {...{ models, model, trying }}
      onModel={setModel}
      canAsk={file !== null}
      act="Transcribe"
      onAsk={send}
      show={(text) => <p className={styles.said}>{text === "" ? "Nothing was heard in it." : text}</p>}
    >
      <label className={styles.file}>
        <span className={styles.label}>Sound file</span>
        <input type="file" accept="audio/*,video/*" onChange={(event) => setFile(event.target.files?.[0] ?? null)} />
        {file !== null && <span className={styles.quiet}>{bytes(file.size)}</span>}
      </label>
    </TryFrame>
  );
}

async function readText(response: Response): Promise<string> {
  const answer: unknown = await response.json();
  const text = (answer as { text?: unknown } | null)?.text;
  if (typeof text !== "string") throw new Error("The answer has no text.");
  return text.trim();
}
