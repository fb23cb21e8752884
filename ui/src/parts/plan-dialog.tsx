/** The one dialog of all acts: choose → plan → confirm → live → proof.
 *
 * Nothing is done before the plan of the server was shown. The plan's hash goes along with the act: when the fleet has
 * changed meanwhile, the new plan is shown instead. Closing the dialog loses nothing: what was asked goes on.
 */

import { type FormEvent, type ReactNode, useCallback, useEffect, useReducer, useRef, useState } from "react";

import { Button } from "./button";
import { CodeBlock } from "./code-block";
import { Dialog } from "./dialog";
import { TextField } from "./fields";
import { useKeptFocus } from "./kept-focus";
import styles from "./plan-dialog.module.css";
import { type Acted, nextStep, type PlanLike, type Step, type StepEvent, stepName } from "./plan-steps";
import { Failure, Loading, Notice } from "./states";

export interface PlanDialogProps<Plan extends PlanLike> {
  readonly title: string;
  /** Fields to choose with, before there is a plan; without them the plan is asked for at once. */
  readonly choose?: ReactNode;
  /** Whether enough is chosen to ask for a plan. */
  readonly isChosen?: boolean;
  /** What is chosen at first is what most people want: the plan is shown at once, and a button leads to the choice. */
  readonly isPlanFirst?: boolean;
  readonly plan: () => Promise<Plan>;
  /** What would happen, in rows. */
  readonly show: (plan: Plan) => ReactNode;
  /** Names the act and its reach: "Delete vllm on 12 nodes". */
  readonly label: (plan: Plan) => string;
  readonly isDangerous?: boolean;
  /** Why nothing can be done with this plan; null when something can. */
  readonly obstacle?: (plan: Plan) => string | null;
  /** A name to type first: only where replicas in use end. */
  readonly nameToType?: (plan: Plan) => string | null;
  readonly act: (plan: Plan) => Promise<Acted>;
  /** The command that does the same. */
  readonly command?: (plan: Plan) => string;
  /** The operation that follows, row by row. */
  readonly live?: (operation: string) => ReactNode;
  /** What to do about an error, where its sentence does not say it. */
  readonly advice?: (error: unknown) => string | undefined;
  readonly onClose: () => void;
}

export function PlanDialog<Plan extends PlanLike>(props: PlanDialogProps<Plan>) {
  const isPlanned = props.choose === undefined || props.isPlanFirst === true;
  const first: Step<Plan> = isPlanned ? { at: "planning" } : { at: "choose" };
  const [step, dispatch] = useReducer<Step<Plan>, [StepEvent<Plan>]>(nextStep, first);
  const { plan, act } = props;
  const place = useRef<HTMLDivElement>(null);
  useKeptFocus(place, step);

  const ask = useCallback(async () => {
    dispatch({ kind: "ask" });
    try {
      dispatch({ kind: "planned", plan: await plan() });
    } catch (error) {
      dispatch({ kind: "failed", error });
    }
  }, [plan]);

  // biome-ignore lint/correctness/useExhaustiveDependencies: asked once when the dialog opens; then people ask
  useEffect(() => {
    if (isPlanned) void ask();
  }, []);

  const confirm = async (agreed: Plan) => {
    dispatch({ kind: "confirm" });
    try {
      dispatch({ kind: "acted", acted: await act(agreed) });
    } catch (error) {
      dispatch({ kind: "failed", error });
    }
  };

  return (
    <Dialog
      title={props.title}
      onClose={props.onClose}
      isWide
      footer={<Footer {...{ props, step, ask, confirm, dispatch }} />}
    >
      {/* biome-ignore lint/a11y/useSemanticElements: a step is no set of form fields */}
      <div ref={place} className={styles.step} role="group" aria-label={stepName(step)} tabIndex={-1}>
        <Content props={props} step={step} ask={ask} />
      </div>
    </Dialog>
  );
}

interface PartProps<Plan extends PlanLike> {
  readonly props: PlanDialogProps<Plan>;
  readonly step: Step<Plan>;
  readonly ask: () => Promise<void>;
}

function Content<Plan extends PlanLike>({ props, step, ask }: PartProps<Plan>) {
  switch (step.at) {
    case "choose":
      return (
        <Choice isChosen={props.isChosen !== false} onChosen={() => void ask()}>
          {props.choose}
        </Choice>
      );
    case "planning":
      return <Loading label="Asking what would happen" />;
    case "planned":
      return (
        <>
          {step.isNew && (
            <Notice tone="yellow">
              The fleet has changed since you looked. This is the plan of now; nothing was done.
            </Notice>
          )}
          {step.error !== null && <Failure error={step.error} />}
          {props.show(step.plan)}
          <AsText plan={step.plan} command={props.command?.(step.plan)} />
        </>
      );
    case "acting":
      return props.show(step.plan);
    case "live":
      return props.live?.(step.operation) ?? <p>Operation {step.operation} has begun.</p>;
    case "done":
      return <p>{step.message}</p>;
    case "failed":
      return <Failure error={step.error} works={props.advice?.(step.error)} onRetry={() => void ask()} />;
  }
}

/** Fields to choose with. Enter in one of them asks for the plan, as the button does. */
function Choice(props: { isChosen: boolean; onChosen: () => void; children: ReactNode }) {
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (props.isChosen) props.onChosen();
  };
  return (
    <form className={styles.choice} onSubmit={submit}>
      {props.children}
      <button type="submit" hidden />
    </form>
  );
}

/** The plan as the command line prints it, and the command that does the same. */
function AsText({ plan, command }: { plan: PlanLike; command: string | undefined }) {
  return (
    <details className={styles.text}>
      <summary>As text, and as a command</summary>
      <div className={styles.blocks}>
        {plan.text !== "" && <CodeBlock label="Plan" text={plan.text} />}
        {command !== undefined && <CodeBlock label="Command" text={command} />}
      </div>
    </details>
  );
}

interface FooterProps<Plan extends PlanLike> extends PartProps<Plan> {
  readonly confirm: (plan: Plan) => Promise<void>;
  readonly dispatch: (event: StepEvent<Plan>) => void;
}

function Footer<Plan extends PlanLike>({ props, step, ask, confirm, dispatch }: FooterProps<Plan>) {
  switch (step.at) {
    case "choose":
      return (
        <>
          <Button onPress={props.onClose}>Close</Button>
          <Button look="primary" isDisabled={props.isChosen === false} onPress={() => void ask()}>
            Show the plan
          </Button>
        </>
      );
    case "planned":
    case "acting":
      return (
        <>
          {props.choose === undefined ? (
            <Button onPress={props.onClose}>Close</Button>
          ) : (
            <Button isDisabled={step.at === "acting"} onPress={() => dispatch({ kind: "back" })}>
              {props.isPlanFirst ? "Change" : "Back"}
            </Button>
          )}
          <Confirm
            key={step.plan.hash}
            props={props}
            plan={step.plan}
            isActing={step.at === "acting"}
            confirm={confirm}
          />
        </>
      );
    case "live":
      return (
        <>
          <span className={styles.note}>Closing this loses nothing: Activity shows it.</span>
          <Button onPress={props.onClose}>Close</Button>
        </>
      );
    case "failed":
      return (
        <>
          {props.choose !== undefined && <Button onPress={() => dispatch({ kind: "back" })}>Back</Button>}
          <Button onPress={props.onClose}>Close</Button>
        </>
      );
    default:
      return <Button onPress={props.onClose}>Close</Button>;
  }
}

function Confirm<Plan extends PlanLike>({
  props,
  plan,
  isActing,
  confirm,
}: {
  props: PlanDialogProps<Plan>;
  plan: Plan;
  isActing: boolean;
  confirm: (plan: Plan) => Promise<void>;
}) {
  const [typed, setTyped] = useState("");
  const obstacle = props.obstacle?.(plan) ?? null;
  const name = props.nameToType?.(plan) ?? null;
  if (obstacle !== null) return <span className={styles.obstacle}>{obstacle}</span>;
  return (
    <>
      {name !== null && (
        <div className={styles.typing}>
          <TextField label={`Replicas in use end. Type ${name} to confirm`} value={typed} onChange={setTyped} />
        </div>
      )}
      <Button
        look={props.isDangerous ? "danger" : "primary"}
        isDisabled={isActing || (name !== null && typed !== name)}
        onPress={() => void confirm(plan)}
      >
        {isActing ? "Asking…" : props.label(plan)}
      </Button>
    </>
  );
}
