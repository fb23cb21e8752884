/** A load as its steps: what is done, what takes how long, how many bytes are left; and the engine's last lines when it failed. */

import { ProgressBar } from "../parts/bar";
import { classes } from "../parts/classes";
import { CodeBlock } from "../parts/code-block";
import { duration } from "../parts/format";
import { addressOf, PageLink } from "../parts/page-link";
import { Glyph } from "../parts/status-pill";
import { type StateWord, stateWord } from "../words.gen";
import { againSentence, amountText, type LoadNews, type NewsStep, STEPS, shareOf } from "./load-news";
import styles from "./load-panel.module.css";

export function LoadPanel({ news, model }: { news: LoadNews; model: string }) {
  return (
    <div className={styles.panel}>
      <Headline news={news} />
      {news.steps.length > 0 && (
        <ol className={styles.steps} aria-label={`Steps of the load of ${model}`}>
          {STEPS.map((step) => (
            <StepItem key={step} name={step} step={news.steps.find((each) => each.step === step)} />
          ))}
        </ol>
      )}
      {!news.isFailed && news.totalBytes !== null && (
        <div className={styles.progress}>
          <ProgressBar name={`Load of ${model}`} percentage={shareOf(news)} />
          <span className={styles.amount}>{amountText(news)}</span>
        </div>
      )}
      {news.message !== "" && <p className={news.isFailed ? styles.failure : styles.message}>{news.message}</p>}
      {news.isFailed && againSentence(news) !== "" && <p className={styles.message}>{againSentence(news)}</p>}
      {news.engineLines.length > 0 && (
        <div>
          <p className={styles.caption}>The engine's last lines</p>
          <CodeBlock label="Engine's last lines" text={news.engineLines.join("\n")} />
        </div>
      )}
    </div>
  );
}

function Headline({ news }: { news: LoadNews }) {
  return (
    <p className={styles.headline}>
      <Glyph word={stateWord("load", news.isFailed ? "failed" : "loading")} />
      <strong>{news.phase}</strong>
      {news.node !== "" && (
        <span>
          on {news.nodeId === "" ? news.node : <PageLink href={addressOf.node(news.nodeId)}>{news.node}</PageLink>}
        </span>
      )}
    </p>
  );
}

const MARKS: Readonly<Record<string, Pick<StateWord, "tone" | "glyph">>> = {
  done: { tone: "green", glyph: "●" },
  running: { tone: "blue", glyph: "◐" },
  failed: { tone: "red", glyph: "✕" },
};
const AHEAD = { tone: "grey", glyph: "○" } as const;

function StepItem({ name, step }: { name: string; step: NewsStep | undefined }) {
  const word = stateWord("load_step", name);
  const mark = MARKS[step?.state ?? ""] ?? AHEAD;
  return (
    <li className={classes(styles.step, step === undefined && styles.ahead)} title={word.tooltip}>
      <Glyph word={{ ...word, ...mark }} />
      <span>{word.label}</span>
      <span className="visually-hidden">{step?.state ?? "not yet"}</span>
      {step !== undefined && step.state !== "waiting" && (
        <span className={styles.seconds}>{secondsText(step.seconds)}</span>
      )}
    </li>
  );
}

function secondsText(seconds: number): string {
  return seconds < 10 ? `${seconds.toFixed(1)} s` : duration(seconds);
}
