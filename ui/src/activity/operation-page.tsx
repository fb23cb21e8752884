/** One operation: what was asked, how each node stands, what to do about it. Its address can be shared. */

import { useState } from "react";

import { answer, api } from "../api/client";
import { sentenceOf } from "../api/errors";
import { useTopic } from "../live/live";
import type { OperationRow, TargetRow } from "../live/topics";
import { Button, LinkButton } from "../parts/button";
import { CopyText } from "../parts/code-block";
import { plural } from "../parts/format";
import { Fact, Facts, Page, Section } from "../parts/page";
import { Empty, Loading, Notice } from "../parts/states";
import { Age, Moment } from "../parts/time";
import { useMay } from "../shell/session";
import styles from "./activity.module.css";
import { BlockStrip } from "./block-strip";
import { CancelDialog } from "./cancel-dialog";
import { OperationState } from "./operation-state";
import { askerOf, titleOf } from "./operation-words";
import { canRetry, isOpen } from "./target-order";
import { TargetRows } from "./target-rows";
import { useOperation } from "./use-operation";

const SHORT_ID = 8;

export function OperationPage({ id }: { id: string }) {
  const operation = useOperation(id);
  const { items, isWhole, isMissing } = useTopic(`operation:${id}`);
  if (isMissing) {
    return (
      <Page title="No such operation">
        <Empty act={<LinkButton href="/activity">Show all operations</LinkButton>}>
          There is no operation with the id {id}. It may belong to another fleet.
        </Empty>
      </Page>
    );
  }
  if (operation === undefined || !isWhole) return <Loading lines={5} label="Loading the operation" />;
  return <Loaded operation={operation} targets={[...items.values()]} />;
}

function Loaded({ operation, targets }: { operation: OperationRow; targets: readonly TargetRow[] }) {
  const retry = useRetry(operation.id);
  const mayAct = useMay("operations.act");
  const retryable = targets.filter(canRetry);
  return (
    <Page
      title={titleOf(operation)}
      note={<OperationState operation={operation} />}
      actions={mayAct && <Acts operation={operation} targets={targets} retry={retry.send} isBusy={retry.isBusy} />}
    >
      {retry.said !== "" && <Notice tone={retry.isRefused ? "red" : "blue"}>{retry.said}</Notice>}
      {operation.notes?.map((note) => (
        <Notice key={note} tone="grey">
          {note}
        </Notice>
      ))}
      <div className={styles.columns}>
        <Section title={`Nodes, ${targets.length}`}>
          <BlockStrip targets={targets} verb={operation.verb} />
        </Section>
        <Section title="Asked">
          <Asked operation={operation} />
        </Section>
      </div>
      <Section title="How each stands" isBare>
        <TargetRows
          targets={targets}
          verb={operation.verb}
          {...(mayAct && retryable.length > 0 ? { onRetry: (target: TargetRow) => void retry.send([target]) } : {})}
        />
      </Section>
    </Page>
  );
}

function Asked({ operation }: { operation: OperationRow }) {
  return (
    <Facts>
      <Fact name="By">{askerOf(operation)}</Fact>
      <Fact name="At">
        <Moment at={operation.accepted_at} /> (<Age at={operation.accepted_at} />)
      </Fact>
      <Fact name="Last change">
        <Age at={operation.changed_at} />
      </Fact>
      {operation.uri !== "" && <Fact name="From">{operation.uri}</Fact>}
      <Fact name="In a terminal">
        <CopyText text={`corral ops watch ${operation.id.slice(0, SHORT_ID)}`} />
      </Fact>
    </Facts>
  );
}

interface ActsProps {
  readonly operation: OperationRow;
  readonly targets: readonly TargetRow[];
  readonly retry: (targets: readonly TargetRow[]) => Promise<void>;
  readonly isBusy: boolean;
}

function Acts({ operation, targets, retry, isBusy }: ActsProps) {
  const [isCancelling, setCancelling] = useState(false);
  const retryable = targets.filter(canRetry);
  const open = targets.filter(isOpen);
  return (
    <>
      {retryable.length > 0 && (
        <Button icon="retry" isDisabled={isBusy} onPress={() => void retry(retryable)}>
          Retry on {plural(retryable.length, "node")}
        </Button>
      )}
      {open.length > 0 && (
        <Button icon="stop" onPress={() => setCancelling(true)}>
          Cancel
        </Button>
      )}
      {isCancelling && <CancelDialog operation={operation} targets={open} onClose={() => setCancelling(false)} />}
    </>
  );
}

/** Tries again on some nodes, and says what came of it. The rows tell the rest. */
function useRetry(id: string) {
  const [said, setSaid] = useState("");
  const [isRefused, setRefused] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const send = async (targets: readonly TargetRow[]) => {
    setBusy(true);
    try {
      const nodes = targets.map((target) => target.node_id);
      const changed = await answer(
        api.POST("/api/v1/operations/{id}/retry", { params: { path: { id } }, body: { nodes } }),
      );
      setRefused(false);
      setSaid(
        changed.nodes.length === 0 ? "Nothing was left to try again." : `Trying again on ${changed.nodes.join(", ")}.`,
      );
    } catch (error) {
      setRefused(true);
      setSaid(sentenceOf(error));
    } finally {
      setBusy(false);
    }
  };
  return { said, isRefused, isBusy, send };
}
