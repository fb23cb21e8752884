/** A text, spoken. */

import { useEffect, useState } from "react";

import { TextField } from "../parts/fields";
import { bytes } from "../parts/format";
import { useChosenModel } from "./chosen-model";
import styles from "./try.module.css";
import { TryFrame } from "./try-frame";
import { useTry } from "./trying";

const ROUTE = "/v1/audio/speech";
const LONGEST = 4096;

export function TrySpeech({ models }: { models: readonly string[] }) {
  const [model, setModel] = useChosenModel(models);
  const [text, setText] = useState("Hello from the fleet.");
  const [voice, setVoice] = useState("");
  const trying = useTry<Blob>();
  const isTooLong = text.length > LONGEST;
  const body = JSON.stringify({ model, input: text, ...(voice.trim() === "" ? {} : { voice: voice.trim() }) });
  return (
    <TryFrame
      title="Speech"
      route={ROUTE}
      {...{ models, model, trying }}
      onModel={setModel}
      canAsk={text.trim() !== "" && !isTooLong}
      act="Speak"
      onAsk={() => trying.ask(ROUTE, body, (response) => response.blob())}
      show={(sound) => <Sound sound={sound} />}
    >
      <TextField
        label="Text"
        lines={4}
        value={text}
        onChange={setText}
        error={isTooLong ? `At most ${LONGEST.toLocaleString("en-US")} characters.` : ""}
      />
      <TextField
        label="Voice (optional)"
        value={voice}
        onChange={setVoice}
        hint="A voice that the model knows; empty: its own."
      />
    </TryFrame>
  );
}

function Sound({ sound }: { sound: Blob }) {
  const [url, setUrl] = useState("");
  useEffect(() => {
    const made = URL.createObjectURL(sound);
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [sound]);
  if (url === "") return null;
  return (
    <div className={styles.sound}>
      {/* biome-ignore lint/a11y/useMediaCaption: the text that is spoken stands above it */}
      <audio controls src={url} />
      <a href={url} download="speech.wav">
        Download ({bytes(sound.size)})
      </a>
    </div>
  );
}
