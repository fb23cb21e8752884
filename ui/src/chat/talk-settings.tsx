/** Which model answers, and how: system prompt and temperature. */

import { useState } from "react";

import { Button } from "../parts/button";
import { Select, TextField } from "../parts/fields";
import type { Talk } from "./talk";
import styles from "./talk-settings.module.css";

export type TalkWishes = Pick<Talk, "model" | "system" | "temperature">;

interface TalkSettingsProps {
  readonly wishes: TalkWishes;
  readonly models: readonly string[];
  readonly onChange: (change: Partial<TalkWishes>) => void;
}

export function TalkSettings({ wishes, models, onChange }: TalkSettingsProps) {
  const [isOpen, setOpen] = useState(false);
  const names = models.includes(wishes.model) || wishes.model === "" ? models : [wishes.model, ...models];
  return (
    <div className={styles.settings}>
      <div className={styles.head}>
        <div className={styles.model}>
          <Select
            label="Model"
            isLabelHidden
            choices={names.map((name) => ({ id: name, label: name }))}
            value={wishes.model}
            onChange={(model) => onChange({ model })}
          />
        </div>
        <Button isSmall look="quiet" onPress={() => setOpen(!isOpen)} aria-expanded={isOpen}>
          {isOpen ? "Hide settings" : settingsText(wishes)}
        </Button>
      </div>
      {isOpen && <Fields wishes={wishes} onChange={onChange} />}
    </div>
  );
}

function settingsText({ system, temperature }: TalkWishes): string {
  const parts = [system.trim() === "" ? "" : "system prompt", temperature === null ? "" : `temperature ${temperature}`];
  return `Settings${parts.some((part) => part !== "") ? `: ${parts.filter((part) => part !== "").join(", ")}` : ""}`;
}

function Fields({ wishes, onChange }: Pick<TalkSettingsProps, "wishes" | "onChange">) {
  const [typed, setTyped] = useState(wishes.temperature === null ? "" : String(wishes.temperature));
  const problem = typed.trim() === "" || isTemperature(typed) ? "" : "A number from 0 to 2.";
  return (
    <div className={styles.fields}>
      <TextField
        label="System prompt"
        lines={3}
        value={wishes.system}
        onChange={(system) => onChange({ system })}
        hint="What the model is told before everything else."
      />
      <div className={styles.temperature}>
        <TextField
          label="Temperature"
          value={typed}
          onChange={(text) => {
            setTyped(text);
            if (text.trim() === "") onChange({ temperature: null });
            else if (isTemperature(text)) onChange({ temperature: Number(text) });
          }}
          placeholder="as configured"
          hint="0 gives the same answer each time, 2 the freest."
          error={problem}
        />
      </div>
    </div>
  );
}

export function isTemperature(text: string): boolean {
  const value = Number(text);
  return text.trim() !== "" && Number.isFinite(value) && value >= 0 && value <= 2;
}
