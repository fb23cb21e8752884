/** Install, upgrade or delete a backend: choose nodes → plan → confirm → live → proof. */

import { useCallback, useMemo, useState } from "react";
import { OperationLive } from "../activity/operation-live";
import { answer, api } from "../api/client";
import { useTopic } from "../live/live";
import { Checkbox, Select, TextField } from "../parts/fields";
import { PlanDialog } from "../parts/plan-dialog";
import {
  askOf,
  type Choice,
  type ChoosableNode,
  choiceProblem,
  choosable,
  commandOf,
  labelOf,
  nameToType,
  obstacleOf,
  titleOf,
} from "./acts";
import styles from "./backends.module.css";
import { PlanView } from "./plan-view";
import { TargetChooser } from "./target-chooser";

interface ActDialogProps {
  readonly start: Choice;
  /** Names to choose from, where the backend is not chosen yet. */
  readonly backends?: readonly string[];
  /** Everything is chosen already: begin with the plan. It can still be changed. */
  readonly isChosen?: boolean;
  readonly onClose: () => void;
}

export function ActDialog({ start, backends, isChosen = false, onClose }: ActDialogProps) {
  const [choice, setChoice] = useState(start);
  const [key] = useState(newKey);
  const { items } = useTopic("nodes");
  const nodes = useMemo(() => choosable(items.values()), [items]);
  const nameOf = (id: string) => items.get(id)?.name ?? id;
  const asked = askOf(choice);
  const plan = useCallback(() => answer(api.POST("/api/v1/operations/plan", { body: askOf(choice) })), [choice]);
  const act = async (hash: string) => {
    // Should the answer be lost and the act be repeated, it is still one operation.
    const headers = { "Idempotency-Key": `${key}-${hash}` };
    const operation = await answer(api.POST("/api/v1/operations", { body: { ...asked, plan_hash: hash }, headers }));
    return { operation: operation.id };
  };
  return (
    <PlanDialog
      title={titleOf(choice)}
      choose={<Choose {...{ choice, nodes, setChoice, backends, hasUri: start.uri !== "" }} />}
      isPlanFirst={isChosen}
      isChosen={choiceProblem(choice, nodes) === ""}
      plan={plan}
      show={(agreed) => <PlanView plan={agreed} verb={choice.verb} />}
      label={(agreed) => labelOf(choice, agreed)}
      isDangerous={choice.verb === "delete"}
      obstacle={obstacleOf}
      nameToType={(agreed) => nameToType(choice, agreed)}
      act={(agreed) => act(agreed.hash)}
      command={() => commandOf(asked, nameOf)}
      live={(operation) => <OperationLive id={operation} />}
      onClose={onClose}
    />
  );
}

/** Names one act of one person, so that a repeated call starts nothing. */
function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

interface ChooseProps {
  readonly choice: Choice;
  readonly nodes: readonly ChoosableNode[];
  readonly setChoice: (choice: Choice) => void;
  readonly backends: readonly string[] | undefined;
  /** It comes from a place that somebody names, not from a gallery. */
  readonly hasUri: boolean;
}

function Choose({ choice, nodes, setChoice, backends, hasUri }: ChooseProps) {
  return (
    <div className={styles.chooser}>
      {backends !== undefined && (
        <Select
          label="Backend"
          choices={backends.map((name) => ({ id: name, label: name }))}
          value={choice.backend}
          onChange={(backend) => setChoice({ ...choice, backend })}
        />
      )}
      {hasUri && <UriFields choice={choice} setChoice={setChoice} />}
      <TargetChooser choice={choice} nodes={nodes} onChange={setChoice} />
      {choice.verb === "install" && (
        <Checkbox isSelected={choice.isForced} onChange={(isForced) => setChoice({ ...choice, isForced })}>
          Fetch it again where it is installed already
        </Checkbox>
      )}
    </div>
  );
}

function UriFields({ choice, setChoice }: Pick<ChooseProps, "choice" | "setChoice">) {
  return (
    <>
      <TextField
        label="Image or directory"
        value={choice.uri}
        onChange={(uri) => setChoice({ ...choice, uri })}
        placeholder="oci://registry.example/mine:1.0"
        hint="Whatever it names runs on your machines: only use sources that you trust."
        isMono
      />
      <TextField label="Name" value={choice.backend} onChange={(backend) => setChoice({ ...choice, backend })} />
    </>
  );
}
