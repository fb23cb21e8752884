/** The first steps of a new fleet, each ticked by what is there. When all are done, the way to the chat. */

import { useState } from "react";

import type { Schema } from "../api/client";
import { useSummary } from "../live/live";
import { IconButton, LinkButton } from "../parts/button";
import { classes } from "../parts/classes";
import { Icon } from "../parts/icons";
import { Notice } from "../parts/states";
import { useMay } from "../shell/session";
import styles from "./first-steps.module.css";

/** A model brings its backend along when it is first asked, so that nobody has to choose one before. */
function isDone(step: Step, started: Started): boolean {
  return Boolean(started[step.key] || (step.key === "has_backend" && started.has_model));
}

const SEEN_KEY = "corral-first-steps-seen";

type Started = Schema<"FirstSteps">;

interface Step {
  readonly key: "has_node" | "has_backend" | "has_model" | "has_answer";
  readonly title: string;
  readonly text: string;
  readonly href: string;
  readonly label: string;
}

const STEPS: readonly Step[] = [
  {
    key: "has_node",
    title: "A machine",
    text: "One command on it, and it is part of the fleet.",
    href: "/join",
    label: "Add a machine",
  },
  {
    key: "has_backend",
    title: "A backend",
    text: "The engine that runs models; the gallery says what fits.",
    href: "/backends",
    label: "Choose a backend",
  },
  {
    key: "has_model",
    title: "A model",
    text: "The smallest that fits is the quickest to try.",
    href: "/models",
    label: "Choose a model",
  },
  {
    key: "has_answer",
    title: "An answer",
    text: "Ask it something, then connect your app.",
    href: "/chat",
    label: "Open Chat",
  },
];

export function FirstSteps() {
  const summary = useSummary();
  const [isSeen, setSeen] = useState(localStorage.getItem(SEEN_KEY) !== null);
  const mayAdmit = useMay("nodes.admit");
  if (summary === undefined || isSeen || !mayAdmit) return null;
  const { started } = summary;
  const close = () => {
    localStorage.setItem(SEEN_KEY, "1");
    setSeen(true);
  };
  const next = STEPS.find((step) => !isDone(step, started));
  if (next === undefined) return null;
  if (next.key === "has_answer") return <AllDone onClose={close} />;
  return (
    <section aria-label="First steps" className={styles.steps}>
      {STEPS.map((step) => (
        <Card key={step.key} step={step} isDone={isDone(step, started)} isNext={step === next} />
      ))}
    </section>
  );
}

function AllDone({ onClose }: { onClose: () => void }) {
  return (
    <Notice tone="blue">
      <span>
        <strong>This fleet is ready.</strong> It has a machine, a backend and a model: ask it something.
      </span>
      <span className={styles.ready}>
        <LinkButton href="/chat" look="primary" isSmall>
          Open Chat
        </LinkButton>
        <IconButton icon="close" label="Do not show this again" onPress={onClose} />
      </span>
    </Notice>
  );
}

function Card({ step, isDone, isNext }: { step: Step; isDone: boolean; isNext: boolean }) {
  return (
    <div className={classes(styles.card, isDone && styles.done)}>
      <h2 className={styles.title}>
        <span className={styles.tick}>{isDone ? <Icon name="check" size={14} /> : STEPS.indexOf(step) + 1}</span>
        {step.title}
        <span className="visually-hidden">{isDone ? ", done" : ", to do"}</span>
      </h2>
      <p className={styles.text}>{step.text}</p>
      {!isDone && (
        <div>
          <LinkButton href={step.href} look={isNext ? "primary" : "plain"} isSmall>
            {step.label}
          </LinkButton>
        </div>
      )}
    </div>
  );
}
