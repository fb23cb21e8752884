/** Edits the YAML of a model. The server checks it while one types; what is wrong is named by line and key. */

import { useRef, useState } from "react";

import type { Schema } from "../api/client";
import { Button } from "../parts/button";
import { Section } from "../parts/page";
import { Notice } from "../parts/states";
import { type ConfigCheck, useConfigCheck } from "./config-check";
import styles from "./config-editor.module.css";
import { type ConfigProblem, lineRange, problemOf } from "./config-problems";
import { SaveDialog } from "./config-save";
import { setDraft, useDraft } from "./drafts";

export type Revision = Schema<"ModelRevisionView">;

export function ConfigEditor({ model, now }: { model: string; now: Revision }) {
  const draft = useDraft(model);
  const text = draft?.text ?? now.text;
  const isChanged = text !== now.text;
  const check = useConfigCheck(model, now.revision, isChanged ? text : null);
  const [isSaving, setSaving] = useState(false);
  const area = useRef<HTMLTextAreaElement>(null);
  const edit = (next: string) =>
    setDraft(model, next === now.text ? null : { text: next, base: draft?.base ?? now.revision });
  return (
    <Section
      title="Configuration"
      actions={
        <>
          {isChanged && (
            <Button isSmall onPress={() => setDraft(model, null)}>
              Discard changes
            </Button>
          )}
          <Button
            isSmall
            look="primary"
            isDisabled={!isChanged || check.state === "refused"}
            onPress={() => setSaving(true)}
          >
            Review changes
          </Button>
        </>
      }
    >
      <div className={styles.editor}>
        {draft !== null && draft.base !== now.revision && (
          <Notice tone="yellow">
            Somebody changed this model while you were editing ({now.changed_by || "unknown"}, change {now.number}).
            Your text is kept; the comparison is with theirs.
          </Notice>
        )}
        <NumberedText area={area} text={text} onChange={edit} problemLine={problemLineOf(check)} />
        <Verdict check={check} isChanged={isChanged} onLine={(line) => select(area.current, text, line)} />
      </div>
      {isSaving && <SaveDialog model={model} now={now} text={text} onClose={() => setSaving(false)} />}
    </Section>
  );
}

function problemLineOf(check: ConfigCheck): number | null {
  return check.state === "refused" ? check.problem.line : null;
}

/** Marks a line, and brings it into sight. */
function select(area: HTMLTextAreaElement | null, text: string, line: number): void {
  const range = lineRange(text, line);
  if (area === null || range === null) return;
  area.focus();
  area.setSelectionRange(range.start, range.end);
  const lines = text.split("\n").length;
  area.scrollTop = (area.scrollHeight / lines) * Math.max(0, line - 4);
}

interface NumberedTextProps {
  readonly area: React.RefObject<HTMLTextAreaElement | null>;
  readonly text: string;
  readonly onChange: (text: string) => void;
  readonly problemLine: number | null;
}

/** A text with the numbers of its lines beside it. */
function NumberedText({ area, text, onChange, problemLine }: NumberedTextProps) {
  const numbers = useRef<HTMLDivElement>(null);
  const lines = text.split("\n").length;
  return (
    <div className={styles.frame}>
      <div className={styles.numbers} ref={numbers} aria-hidden="true">
        {Array.from({ length: lines }, (_, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: a line is its number
          <div key={index} className={index + 1 === problemLine ? styles.wrong : undefined}>
            {index + 1}
          </div>
        ))}
      </div>
      <textarea
        ref={area}
        className={styles.text}
        aria-label="YAML of the model"
        aria-invalid={problemLine !== null}
        aria-describedby="config-verdict"
        value={text}
        rows={Math.min(Math.max(lines, 12), 30)}
        wrap="off"
        spellCheck={false}
        autoCapitalize="off"
        autoComplete="off"
        onChange={(event) => onChange(event.target.value)}
        onScroll={(event) => {
          if (numbers.current !== null) numbers.current.scrollTop = event.currentTarget.scrollTop;
        }}
      />
    </div>
  );
}

/** What the server says of the text, as one typed it last. */
function Verdict({
  check,
  isChanged,
  onLine,
}: {
  check: ConfigCheck;
  isChanged: boolean;
  onLine: (line: number) => void;
}) {
  return (
    <div id="config-verdict" className={styles.verdict} aria-live="polite">
      {!isChanged && <span className={styles.quiet}>As it is stored.</span>}
      {isChanged && check.state === "checking" && <span className={styles.quiet}>Checking…</span>}
      {isChanged && check.state === "accepted" && <span className={styles.good}>● The frontend would take it.</span>}
      {isChanged && check.state === "refused" && <Problem problem={check.problem} onLine={onLine} isError />}
      {isChanged &&
        check.state === "accepted" &&
        check.change.warnings.map((warning) => <Problem key={warning} problem={problemOf(warning)} onLine={onLine} />)}
    </div>
  );
}

interface ProblemProps {
  readonly problem: ConfigProblem;
  readonly onLine: (line: number) => void;
  readonly isError?: boolean;
}

function Problem({ problem, onLine, isError = false }: ProblemProps) {
  const { line, key, text } = problem;
  return (
    <p className={isError ? styles.bad : styles.warning}>
      <span aria-hidden="true">{isError ? "✕ " : "◔ "}</span>
      {line !== null && (
        <button type="button" className={styles.line} onClick={() => onLine(line)}>
          Line {line}
        </button>
      )}
      {key !== "" && <code>{key}</code>}
      <span>{text}</span>
    </p>
  );
}
