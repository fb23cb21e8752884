/** The frame of every page that tries a model: which model, what goes in, what comes out. */

import { type ReactNode, useEffect } from "react";
import type { LoadNews } from "../models/load-news";
import { LoadPanel } from "../models/load-panel";
import { Button } from "../parts/button";
import { Select } from "../parts/fields";
import { Section } from "../parts/page";
import { Empty } from "../parts/states";
import { useLoadNews } from "./load-watch";
import styles from "./try.module.css";
import type { Trying } from "./trying";

interface TryFrameProps<Result> {
  readonly title: string;
  /** The route that is asked. */
  readonly route: string;
  readonly models: readonly string[];
  readonly model: string;
  readonly onModel: (model: string) => void;
  readonly trying: Trying<Result>;
  readonly canAsk: boolean;
  /** What the button says. */
  readonly act: string;
  readonly onAsk: () => void;
  readonly show: (result: Result) => ReactNode;
  readonly children: ReactNode;
}

export function TryFrame<Result>(props: TryFrameProps<Result>) {
  const { models, model } = props;
  const { attempt, stop } = props.trying;
  if (models.length === 0) {
    return (
      <Section>
        <Empty command="corral models search">No model of the fleet is for this.</Empty>
      </Section>
    );
  }
  return (
    <Section title={props.title}>
      <div className={styles.try}>
        <div className={styles.model}>
          <Select
            label="Model"
            choices={models.map((name) => ({ id: name, label: name }))}
            value={model}
            onChange={props.onModel}
          />
        </div>
        {props.children}
        <div className={styles.acts}>
          {attempt.state === "asking" ? (
            <Button icon="stop" onPress={stop}>
              Stop
            </Button>
          ) : (
            <Button look="primary" isDisabled={!props.canAsk} onPress={props.onAsk}>
              {props.act}
            </Button>
          )}
          <span className={styles.quiet}>
            <code>POST {props.route}</code>
          </span>
        </div>
        <Outcome model={model} trying={props.trying} show={props.show} />
      </div>
    </Section>
  );
}

interface OutcomeProps<Result> {
  readonly model: string;
  readonly trying: Trying<Result>;
  readonly show: (result: Result) => ReactNode;
}

function Outcome<Result>({ model, trying: { attempt, noteLoad }, show }: OutcomeProps<Result>) {
  switch (attempt.state) {
    case "idle":
      return null;
    case "asking":
      return <Asking model={model} sentAt={attempt.sentAt} told={attempt.news} onLoad={noteLoad} />;
    case "failed":
      return (
        <div role="alert" className={styles.panel}>
          <p className={styles.failure}>✕ {attempt.problem}</p>
          {attempt.news !== null && <LoadPanel news={attempt.news} model={model} />}
        </div>
      );
    case "done":
      return (
        <div className={styles.result} aria-live="polite">
          {show(attempt.result)}
          <p className={styles.quiet}>
            {model} answered in {attempt.seconds.toFixed(2)} s{attempt.hasLoaded ? ", its load included" : ""}.
          </p>
        </div>
      );
  }
}

interface AskingProps {
  readonly model: string;
  readonly sentAt: number;
  readonly told: LoadNews | null;
  readonly onLoad: () => void;
}

function Asking({ model, sentAt, told, onLoad }: AskingProps) {
  const news = useLoadNews(model, sentAt) ?? told;
  useEffect(() => {
    if (news !== null) onLoad();
  }, [news, onLoad]);
  if (news === null) return <p className={styles.quiet}>Waiting for {model}…</p>;
  return (
    <div className={styles.panel}>
      <p>
        <strong>{model}</strong> is not loaded yet. It is asked by itself when it is ready.
      </p>
      <LoadPanel news={news} model={model} />
    </div>
  );
}
