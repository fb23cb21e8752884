/** Small buttons that add something to what is typed: labels, tags. */

import { Button } from "react-aria-components";

import styles from "./chips.module.css";

export interface Chip {
  readonly text: string;
  readonly count?: number;
}

export function Chips({
  label,
  chips,
  onChoose,
}: {
  label: string;
  chips: readonly Chip[];
  onChoose: (text: string) => void;
}) {
  if (chips.length === 0) return null;
  return (
    <fieldset className={styles.chips}>
      <legend className="visually-hidden">{label}</legend>
      {chips.map((chip) => (
        <Button key={chip.text} className={styles.chip} onPress={() => onChoose(chip.text)}>
          {chip.text}
          {chip.count !== undefined && <span className={styles.count}>{chip.count}</span>}
        </Button>
      ))}
    </fieldset>
  );
}
