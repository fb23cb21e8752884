/** A state in words: glyph, label and tone from the table that the command line prints too. Never colour alone. */

import { type StateWord, type Subject, stateWord, targetWord } from "../words.gen";
import { classes } from "./classes";
import styles from "./status-pill.module.css";

export function StatusPill({ subject, state }: { subject: Subject; state: string }) {
  return <WordPill word={stateWord(subject, state)} />;
}

/** The state of a target of an operation: what is `downloading` for an install is `deleting` for a delete. */
export function TargetPill({ status, verb }: { status: string; verb: string }) {
  return <WordPill word={targetWord(status, verb)} />;
}

/** `isPlanned`: it is about to become so, and is not struck out as what is over. */
export function WordPill({ word, isPlanned = false }: { word: StateWord; isPlanned?: boolean }) {
  return (
    <span className={classes(styles.pill, styles[word.tone], isPlanned && styles.planned)} title={word.tooltip}>
      <Glyph word={word} />
      <span className={styles.label}>{word.label}</span>
    </span>
  );
}

/** The glyph alone, for places where the word is beside it in another form. */
export function Glyph({ word }: { word: StateWord }) {
  return (
    <span className={classes(styles.glyph, styles[word.tone])} aria-hidden="true">
      {word.glyph}
    </span>
  );
}
