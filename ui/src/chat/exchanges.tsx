/** Questions and answers, one below the other. Follows an answer that grows, unless somebody scrolled up. */

import { useEffect, useRef, useState } from "react";

import { SCROLLER_ID } from "../parts/scroller";
import { AnswerView } from "./answer-view";
import styles from "./exchanges.module.css";
import { useLoadNews } from "./load-watch";
import { QuestionView } from "./question-view";
import { type Answer, openAnswer, type Talk } from "./talk";
import type { Talks } from "./talks";

export function Exchanges({ talk, talks }: { talk: Talk; talks: Talks }) {
  const open = openAnswer(talk);
  useFollow(talk);
  return (
    <>
      <ol className={styles.list} aria-label={`Talk with ${talk.model}`}>
        {talk.exchanges.map((exchange, index) => (
          <li key={exchange.id} className={styles.exchange}>
            <QuestionView
              question={exchange.question}
              onEdit={(question) => talks.askAgain(talk.id, exchange.id, question)}
            />
            <AnswerView
              answer={exchange.answer}
              model={talk.model}
              {...(index === talk.exchanges.length - 1 && open === null
                ? { onAgain: () => talks.askAgain(talk.id, exchange.id, exchange.question) }
                : {})}
            />
          </li>
        ))}
      </ol>
      {open !== null && open.state !== "streaming" && (
        <LoadListener key={open.id} talk={talk} answer={open} talks={talks} />
      )}
      <p role="status" className="visually-hidden">
        {announcement(talk)}
      </p>
    </>
  );
}

/** Tells the talk how far the load is that its answer waits for. Shows nothing itself. */
function LoadListener({ talk, answer, talks }: { talk: Talk; answer: Answer; talks: Talks }) {
  const [since] = useState(answer.times?.sentAt ?? Date.now());
  const news = useLoadNews(talk.model, since);
  useEffect(() => talks.hear(talk.id, answer.id, news), [talks, talk.id, answer.id, news]);
  return null;
}

/** What happens, in a few words, for those who do not see it. */
function announcement(talk: Talk): string {
  const answer = talk.exchanges.at(-1)?.answer;
  switch (answer?.state) {
    case "waiting":
      return `Asked ${talk.model}.`;
    case "loading":
      return `${talk.model} is being loaded. The question is sent by itself.`;
    case "streaming":
      return `${talk.model} answers.`;
    case "done":
      return `The answer is complete. ${answer.text}`;
    case "stopped":
      return "Stopped.";
    case "failed":
      return `No answer: ${answer.problem}`;
    default:
      return "";
  }
}

/** How near the end somebody must be to be taken along. */
const NEAR_PIXELS = 120;

function useFollow(talk: Talk): void {
  const isNear = useRef(true);
  useEffect(() => {
    const scroller = document.getElementById(SCROLLER_ID);
    if (scroller === null) return;
    const look = () => {
      isNear.current = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_PIXELS;
    };
    scroller.addEventListener("scroll", look, { passive: true });
    return () => scroller.removeEventListener("scroll", look);
  }, []);
  const asked = talk.exchanges.length;
  // biome-ignore lint/correctness/useExhaustiveDependencies: whoever opens a talk or asks wants to see its end
  useEffect(() => {
    isNear.current = true;
  }, [talk.id, asked]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: again whenever the talk has changed
  useEffect(() => {
    const scroller = document.getElementById(SCROLLER_ID);
    if (scroller !== null && isNear.current) scroller.scrollTop = scroller.scrollHeight;
  }, [talk]);
}
