/** The field to ask in. Enter sends, Shift+Enter begins a new line, Escape stops an answer. */

import { type KeyboardEvent, useEffect, useRef, useState } from "react";

import { Button } from "../parts/button";
import styles from "./composer.module.css";

interface ComposerProps {
  readonly model: string;
  /** An answer is on its way. */
  readonly isBusy: boolean;
  /** The browser has no room to keep talks. */
  readonly isFull: boolean;
  readonly onSend: (question: string) => void;
  readonly onStop: () => void;
}

export function Composer({ model, isBusy, isFull, onSend, onStop }: ComposerProps) {
  const [text, setText] = useState("");
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => area.current?.focus({ preventScroll: true }), []);
  const canSend = !isBusy && model !== "" && text.trim() !== "";
  const send = () => {
    if (!canSend) return;
    onSend(text);
    setText("");
  };
  const press = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) {
      event.preventDefault();
      send();
    }
    if (event.key === "Escape" && isBusy) onStop();
  };
  return (
    <div className={styles.composer}>
      <div className={styles.frame}>
        <div className={styles.grow} data-text={`${text}\n`}>
          <textarea
            ref={area}
            className={styles.text}
            aria-label={model === "" ? "Your question" : `Your question to ${model}`}
            placeholder={model === "" ? "Choose a model first" : `Ask ${model}`}
            rows={1}
            value={text}
            onChange={(event) => setText(event.target.value)}
            onKeyDown={press}
          />
        </div>
        {isBusy ? (
          <Button icon="stop" onPress={onStop}>
            Stop
          </Button>
        ) : (
          <Button look="primary" icon="arrow" isDisabled={!canSend} onPress={send}>
            Send
          </Button>
        )}
      </div>
      <p className={styles.hint}>
        {isFull
          ? "This browser has no room left: this talk is not kept. Clear old talks."
          : "Enter sends, Shift+Enter begins a new line."}
      </p>
    </div>
  );
}
