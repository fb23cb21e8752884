/** An answer: its text, what it waits for, how fast it came and from whom. */

import { useItem } from "../live/live";
import type { LoadNews } from "../models/load-news";
import { LoadPanel } from "../models/load-panel";
import { Button } from "../parts/button";
import { CopyButton } from "../parts/code-block";
import { speedText } from "./answer-speed";
import styles from "./exchanges.module.css";
import { Markdown } from "./markdown-view";
import { type Answer, endNote, isOpen } from "./talk";

interface AnswerViewProps {
  readonly answer: Answer;
  readonly model: string;
  /** Asks for another answer to the same question. */
  readonly onAgain?: () => void;
}

export function AnswerView({ answer, model, onAgain }: AnswerViewProps) {
  const note = endNote(answer);
  return (
    <div className={styles.answer}>
      <span className="visually-hidden">{answer.model || model} answered:</span>
      {answer.reasoning !== "" && <Thoughts answer={answer} />}
      {answer.text !== "" && <Markdown text={answer.text} />}
      {answer.text === "" && isOpen(answer) && answer.reasoning === "" && <Waiting answer={answer} model={model} />}
      {answer.state === "failed" && <Failed answer={answer} model={model} />}
      {note !== "" && <p className={styles.note}>{note}</p>}
      <div className={styles.acts}>
        <Numbers answer={answer} />
        {answer.text !== "" && !isOpen(answer) && <CopyButton text={answer.text} label="Copy the answer" />}
        {onAgain !== undefined && (
          <Button isSmall look="quiet" icon="retry" onPress={onAgain}>
            {answer.state === "failed" ? "Try again" : "Regenerate"}
          </Button>
        )}
      </div>
    </div>
  );
}

/** What a model thought before it answered. Open while nothing else is there. */
function Thoughts({ answer }: { answer: Answer }) {
  return (
    <details className={styles.thoughts} open={answer.text === "" && isOpen(answer)}>
      <summary>{answer.text === "" && isOpen(answer) ? "Thinking…" : "What it thought"}</summary>
      <div className={styles.thoughtText}>{answer.reasoning}</div>
    </details>
  );
}

function Waiting({ answer, model }: { answer: Answer; model: string }) {
  if (answer.news === null) return <p className={styles.waiting}>Waiting for {model}…</p>;
  return (
    <div className={styles.panel}>
      <p>
        <strong>{model}</strong> is not loaded yet. Your question is sent by itself when it is ready.
      </p>
      <LoadPanel news={answer.news} model={model} />
    </div>
  );
}

function Failed({ answer, model }: { answer: Answer; model: string }) {
  return (
    <div className={styles.panel} role="alert">
      {answer.news === null ? (
        <p className={styles.failure}>✕ {answer.problem}</p>
      ) : (
        <FailedLoad news={answer.news} model={model} />
      )}
    </div>
  );
}

function FailedLoad({ news, model }: { news: LoadNews; model: string }) {
  return (
    <>
      <p className={styles.failure}>✕ {model} could not be loaded.</p>
      <LoadPanel news={news} model={model} />
    </>
  );
}

/** Who answered, how soon and how fast. */
function Numbers({ answer }: { answer: Answer }) {
  const node = useItem("nodes", answer.nodeId);
  if (answer.times === null || answer.times.firstAt === null) return null;
  const who = [answer.model, answer.nodeId === "" ? "" : `on ${node?.name ?? answer.nodeId}`]
    .filter((part) => part !== "")
    .join(" ");
  return (
    <span className={styles.numbers}>{[who, speedText(answer.times)].filter((part) => part !== "").join(" · ")}</span>
  );
}
