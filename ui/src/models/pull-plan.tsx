/** What a pull would bring: builds and which fits, files, bytes, room, licence. */

import type { Schema } from "../api/client";
import { Button } from "../parts/button";
import { CodeBlock } from "../parts/code-block";
import { bytes, plural } from "../parts/format";
import { Fact, Facts } from "../parts/page";
import { Notice } from "../parts/states";
import { WordPill } from "../parts/status-pill";
import type { StateWord } from "../words.gen";
import styles from "./pull.module.css";
import { doubtsOf, downloadText } from "./pull-words";

type PullPlan = Schema<"PullPlanView">;

export function PullPlanRows({ plan, onBuild }: { plan: PullPlan; onBuild: (build: string) => void }) {
  return (
    <>
      {doubtsOf(plan).map((doubt) => (
        <Notice key={doubt} tone="yellow">
          {doubt}
        </Notice>
      ))}
      {plan.choices.length > 1 && <Builds choices={plan.choices} onBuild={onBuild} />}
      <Facts>
        <Fact name="Model">{plan.name}</Fact>
        <Fact name="From">{plan.resolved || plan.reference}</Fact>
        <Fact name="Licence">{plan.licence || "not stated"}</Fact>
        <Fact name="Download">{downloadText(plan)}</Fact>
        {plan.memory_bytes > 0 && <Fact name="Memory">about {bytes(plan.memory_bytes)}</Fact>}
      </Facts>
      {plan.notes.map((note) => (
        <p key={note} className={styles.quiet}>
          {note}
        </p>
      ))}
      <details>
        <summary>{plural(plan.files.length, "file")}</summary>
        <ul className={styles.files}>
          {plan.files.map((file) => (
            <li key={file.path}>
              <code>{file.path}</code>{" "}
              <span className={styles.quiet}>{file.size === null ? "unknown size" : bytes(file.size)}</span>
            </li>
          ))}
        </ul>
      </details>
      <details>
        <summary>Its YAML</summary>
        <CodeBlock label="YAML" text={plan.config} />
      </details>
    </>
  );
}

const FITS: Readonly<Record<string, StateWord>> = {
  true: { label: "Fits", tone: "green", glyph: "●", tooltip: "Some node has the memory for it." },
  false: { label: "Does not fit", tone: "purple", glyph: "⊘", tooltip: "No node has the memory for it." },
};
const UNKNOWN: StateWord = {
  label: "Unknown",
  tone: "grey",
  glyph: "○",
  tooltip: "Nobody can tell before it is loaded.",
};

function Builds({ choices, onBuild }: { choices: PullPlan["choices"]; onBuild: (build: string) => void }) {
  return (
    <ul className={styles.builds} aria-label="Builds">
      {choices.map((choice) => (
        <li key={choice.name} className={styles.build}>
          <strong>{choice.name}</strong>
          <span className={styles.number}>{bytes(choice.bytes)}</span>
          <span className={styles.number}>{choice.needed_bytes ? `${bytes(choice.needed_bytes)} to run` : ""}</span>
          <WordPill word={FITS[String(choice.fits)] ?? UNKNOWN} />
          {choice.is_chosen ? (
            <span className={styles.quiet}>is taken</span>
          ) : (
            <Button isSmall onPress={() => onBuild(choice.name)}>
              Take this one
            </Button>
          )}
        </li>
      ))}
    </ul>
  );
}
