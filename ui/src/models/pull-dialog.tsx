/** Pulls a model: say what, see what would come and whether it fits, confirm, watch its files. */

import { useCallback, useMemo, useState } from "react";

import { answer, api, type Schema } from "../api/client";
import { ApiError } from "../api/errors";
import { LinkButton } from "../parts/button";
import { TextField } from "../parts/fields";
import { bytes } from "../parts/format";
import { PlanDialog } from "../parts/plan-dialog";
import { chatPath, modelPath } from "./place";
import styles from "./pull.module.css";
import { PullPlanRows } from "./pull-plan";
import { PullProgress } from "./pull-progress";
import { pullCommand } from "./pull-words";
import { useForgetModels } from "./queries";

type PullPlan = Schema<"PullPlanView">;

interface PullDialogProps {
  /** What to pull; empty: the dialog asks. */
  readonly reference?: string;
  readonly build?: string;
  readonly onClose: () => void;
}

export function PullDialog({ reference: given = "", build: chosen = "", onClose }: PullDialogProps) {
  const [reference, setReference] = useState(given);
  const [name, setName] = useState("");
  const [build, setBuild] = useState(chosen);
  const [attempt, setAttempt] = useState(0);
  const [pulled, setPulled] = useState("");
  const forget = useForgetModels();
  const wish = useMemo(() => ({ reference: reference.trim(), name: name.trim(), build }), [reference, name, build]);

  const plan = useCallback(
    (): Promise<PullPlan> =>
      answer(api.POST("/api/v1/pulls/plan", { body: { ...wish, dry_run: false, plan_hash: "" } })),
    [wish],
  );

  const act = async (planned: PullPlan) => {
    const body = { ...wish, name: planned.name, dry_run: false, plan_hash: planned.hash };
    const operation = await answer(api.POST("/api/v1/pulls", { body }));
    setPulled(planned.name);
    forget();
    return { operation: operation.id };
  };

  const isAsking = given === "" && attempt === 0;
  const takeBuild = (next: string) => {
    setBuild(next);
    setAttempt(attempt + 1);
  };
  return (
    <PlanDialog<PullPlan>
      key={attempt}
      title="Pull a model"
      {...(isAsking
        ? { choose: <Wish {...{ reference, setReference, name, setName }} />, isChosen: wish.reference !== "" }
        : {})}
      plan={plan}
      show={(planned) => <PullPlanRows plan={planned} onBuild={takeBuild} />}
      label={(planned) => `Pull ${planned.name}${planned.needed_bytes > 0 ? ` (${bytes(planned.needed_bytes)})` : ""}`}
      obstacle={(planned) => planned.refusal || null}
      act={act}
      command={() => pullCommand(wish)}
      live={(operation) => <PullProgress operation={operation} model={pulled} done={<Next name={pulled} />} />}
      advice={adviceOn}
      onClose={onClose}
    />
  );
}

/** The browser may reach a hub that the frontend, which fetches models, does not. */
function adviceOn(error: unknown): string | undefined {
  if (!(error instanceof ApiError) || error.code !== "hub_unavailable") return undefined;
  return (
    "The frontend fetches models: let its machine reach that host, or name a mirror in its settings " +
    "(hubs.hf_url, hubs.ollama_url, hubs.oci_url)."
  );
}

interface WishProps {
  readonly reference: string;
  readonly setReference: (text: string) => void;
  readonly name: string;
  readonly setName: (text: string) => void;
}

function Wish({ reference, setReference, name, setName }: WishProps) {
  return (
    <>
      <TextField
        label="Reference"
        value={reference}
        onChange={setReference}
        placeholder="qwen2.5-0.5b-instruct, or hf://ORG/REPO"
        isMono
        autoFocus
        hint={
          <>
            An entry of a gallery, <code>hf://ORG/REPO[/FILE][@REVISION]</code>, <code>ollama://NAME[:TAG]</code>,{" "}
            <code>oci://HOST/REPO[:TAG]</code>, a URL, or a path on the frontend's machine. Of several builds the best
            that fits the fleet is taken.
          </>
        }
      />
      <TextField label="Name (optional)" value={name} onChange={setName} hint="What the model shall be called." />
    </>
  );
}

function Next({ name }: { name: string }) {
  return (
    <p className={styles.next}>
      <span>{name} is there. The first request loads it.</span>
      <LinkButton href={modelPath(name)} isSmall>
        Open the model
      </LinkButton>
      <LinkButton href={chatPath(name)} isSmall icon="chat">
        Chat
      </LinkButton>
    </p>
  );
}
