/** How well texts fit a question, the best first. */

import { useState } from "react";

import { TextField } from "../parts/fields";
import { useChosenModel } from "./chosen-model";
import styles from "./try.module.css";
import { TryFrame } from "./try-frame";
import { useTry } from "./trying";
import { linesOf } from "./vectors";

const ROUTE = "/v1/rerank";

interface Ranked {
  readonly text: string;
  readonly score: number;
}

export function TryRerank({ models }: { models: readonly string[] }) {
  const [model, setModel] = useChosenModel(models);
  const [query, setQuery] = useState("What is a llama?");
  const [text, setText] = useState("An animal of the Andes.\nA kind of tea.\nA server rack.");
  const trying = useTry<readonly Ranked[]>();
  const documents = linesOf(text);
  const body = JSON.stringify({ model, query, documents, top_n: documents.length });
  return (
    <TryFrame
      title="Rerank"
      route={ROUTE}
      {...{ models, model, trying }}
      onModel={setModel}
      canAsk={query.trim() !== "" && documents.length > 0}
      act="Rank"
      onAsk={() => trying.ask(ROUTE, body, async (response) => readRanks(await response.json(), documents))}
      show={(ranks) => (
        <ol className={styles.vectors}>
          {ranks.map((rank) => (
            <li key={rank.text}>
              <span className={styles.text}>{rank.text}</span>
              <code className={styles.quiet}>{rank.score.toFixed(4)}</code>
            </li>
          ))}
        </ol>
      )}
    >
      <TextField label="Question" value={query} onChange={setQuery} />
      <TextField label="Texts, one in each line" lines={4} value={text} onChange={setText} />
    </TryFrame>
  );
}

export function readRanks(body: unknown, documents: readonly string[]): Ranked[] {
  const results = (body as { results?: unknown } | null)?.results;
  if (!Array.isArray(results)) throw new Error("The answer has no ranks.");
  return results.map((result: { index?: number; relevance_score?: number }) => ({
    text: documents[result.index ?? -1] ?? "?",
    score: result.relevance_score ?? 0,
  }));
}
