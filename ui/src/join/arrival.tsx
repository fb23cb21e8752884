/** What becomes of the machine, live: code made → seen → approved → healthy, and what is missing. */

import { useQueries, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";

import { answer, api } from "../api/client";
import { useTopic } from "../live/live";
import type { NodeRow } from "../live/topics";
import { Button, LinkButton } from "../parts/button";
import { classes } from "../parts/classes";
import { useSubmission } from "../parts/form-dialog";
import { bytes } from "../parts/format";
import { gpuText } from "../parts/hardware";
import { Fact, Facts, Section } from "../parts/page";
import { Failure } from "../parts/states";
import type { Worker } from "./commands";
import styles from "./join.module.css";
import type { Made } from "./page";
import { type JoinStep, joinSteps, newcomers, type StepState } from "./steps";

export function Arrival({ worker, made }: { worker: Worker; made: Made | null }) {
  const known = useKnownNodes();
  const { items } = useTopic("nodes");
  const candidates = known === null ? [] : newcomers(items.values(), known, worker);
  const node = useMatching(candidates, made);
  const invitation = useInvitation(made, node);
  const needsCode = worker === "corral";
  const steps = joinSteps(invitation, node, needsCode);
  return (
    <Section title="What happens">
      <ol className={styles.track} aria-live="polite">
        {steps.map((step) => (
          <Step key={step.id} step={step} />
        ))}
      </ol>
      {node !== null && <Newcomer node={node} />}
    </Section>
  );
}

/** The ids of all nodes when the wizard was opened; null until the fleet is known. */
function useKnownNodes(): ReadonlySet<string> | null {
  const { items, isWhole } = useTopic("nodes");
  const [known, setKnown] = useState<ReadonlySet<string> | null>(null);
  useEffect(() => {
    if (isWhole && known === null) setKnown(new Set(items.keys()));
  }, [isWhole, items, known]);
  return known;
}

/** The newcomer that came with this code; without a code, the latest one of its kind. */
function useMatching(candidates: readonly NodeRow[], made: Made | null): NodeRow | null {
  const details = useQueries({
    queries: candidates.map((node) => ({
      queryKey: ["join", "node", node.id],
      queryFn: () => answer(api.GET("/api/v1/nodes/{id}", { params: { path: { id: node.id } } })),
      enabled: made !== null,
      staleTime: Number.POSITIVE_INFINITY,
    })),
  });
  if (made === null) return candidates.at(-1) ?? null;
  return candidates.find((_, index) => details[index]?.data?.invitation === made.id) ?? null;
}

/** How the code stands, asked again when the machine is seen; until then only time can end it. */
function useInvitation(made: Made | null, node: NodeRow | null) {
  const { data } = useQuery({
    queryKey: ["join", "invitation", made?.id, node?.id],
    queryFn: () => answer(api.GET("/api/v1/invitations")),
    enabled: made !== null,
  });
  if (made === null) return null;
  const now = data?.find((each) => each.id === made.id) ?? made;
  const isOver = node === null && Date.parse(made.expires_at) < Date.now();
  return { id: made.id, approve: made.approve, state: isOver ? "expired" : now.state };
}

const GLYPHS: Readonly<Record<StepState, string>> = { done: "✓", now: "◔", later: "○", trouble: "✕" };
const SAID: Readonly<Record<StepState, string>> = { done: "done", now: "now", later: "later", trouble: "trouble" };

function Step({ step }: { step: JoinStep }) {
  return (
    <li className={classes(styles.step, styles[step.state])}>
      <span className={styles.glyph} aria-hidden="true">
        {GLYPHS[step.state]}
      </span>
      <span>
        <span className={styles.stepTitle}>
          {step.title}
          <span className="visually-hidden">: {SAID[step.state]}</span>
        </span>
        {step.detail !== "" && <span className={styles.detail}>{step.detail}</span>}
      </span>
    </li>
  );
}

function Newcomer({ node }: { node: NodeRow }) {
  const isPending = node.status === "pending";
  const submission = useSubmission(async () => {
    await answer(api.POST("/api/v1/nodes/{id}/approve", { params: { path: { id: node.id } } }));
  });
  return (
    <div className={styles.newcomer}>
      <Facts>
        <Fact name="Name">{node.name}</Fact>
        {node.fingerprint !== "" && (
          <Fact name="Fingerprint">
            <code className={styles.fingerprint}>{node.fingerprint}</code>
          </Fact>
        )}
        <Fact name="Address">{node.address || "–"}</Fact>
        <Fact name="Hardware">{hardwareText(node)}</Fact>
        <Fact name="Version">{node.version || "not said"}</Fact>
      </Facts>
      {submission.error !== null && <Failure error={submission.error} />}
      <div className={styles.acts}>
        {isPending && (
          <Button look="primary" isDisabled={submission.isActing} onPress={submission.submit}>
            {`Approve ${node.name}`}
          </Button>
        )}
        {node.status === "healthy" && (
          <LinkButton href={`/backends?act=install&nodes=${encodeURIComponent(node.id)}`} look="primary">
            Install a backend there
          </LinkButton>
        )}
        <LinkButton href={`/nodes/${encodeURIComponent(node.id)}`}>Open the node</LinkButton>
      </div>
    </div>
  );
}

function hardwareText(node: NodeRow): string {
  const vram = node.vram.total ? `${bytes(node.vram.total)} VRAM` : "";
  return [gpuText(node), vram, `${bytes(node.ram.total)} RAM`].filter((part) => part !== "").join(" · ");
}
