/** Taking back what is not done. Honest about what was sent already: those nodes may still finish. */

import { useState } from "react";

import { answer, api } from "../api/client";
import type { OperationRow, TargetRow } from "../live/topics";
import { Button } from "../parts/button";
import { Dialog } from "../parts/dialog";
import { plural } from "../parts/format";
import { Failure, Notice } from "../parts/states";
import { titleOf } from "./operation-words";
import { mayStillFinish } from "./target-order";

interface CancelProps {
  readonly operation: OperationRow;
  readonly targets: readonly TargetRow[];
  readonly onClose: () => void;
}

export function CancelDialog({ operation, targets, onClose }: CancelProps) {
  const [error, setError] = useState<unknown>(null);
  const [sent, setSent] = useState<readonly string[] | null>(null);
  const [isBusy, setBusy] = useState(false);
  const late = targets.filter(mayStillFinish);

  const cancel = async () => {
    setBusy(true);
    try {
      const path = { id: operation.id };
      const changed = await answer(
        api.POST("/api/v1/operations/{id}/cancel", { params: { path }, body: { nodes: [] } }),
      );
      setSent(changed.already_sent ?? []);
    } catch (refusal) {
      setError(refusal);
    } finally {
      setBusy(false);
    }
  };

  return (
    <Dialog
      title={`Cancel: ${titleOf(operation)}`}
      onClose={onClose}
      footer={
        sent === null ? (
          <>
            <Button onPress={onClose}>Let it go on</Button>
            <Button look="danger" isDisabled={isBusy} onPress={() => void cancel()}>
              {isBusy ? "Asking…" : `Cancel on ${plural(targets.length, "node")}`}
            </Button>
          </>
        ) : (
          <Button onPress={onClose}>Close</Button>
        )
      }
    >
      {error !== null && <Failure error={error} />}
      {sent === null ? <Consequences count={targets.length} late={late} /> : <Outcome sent={sent} />}
    </Dialog>
  );
}

function Consequences({ count, late }: { count: number; late: readonly TargetRow[] }) {
  return (
    <>
      <p>What is not done yet on {plural(count, "node")} is taken back. What is done stays done.</p>
      {late.length > 0 && (
        <Notice tone="yellow">
          {plural(late.length, "node")} may still finish what was sent: {names(late.map((target) => target.node_name))}.
          Their own report will tell.
        </Notice>
      )}
    </>
  );
}

function Outcome({ sent }: { sent: readonly string[] }) {
  if (sent.length === 0) return <p>It is cancelled, and no node has anything of it left to do.</p>;
  return (
    <p>
      It is cancelled. {plural(sent.length, "node")} may still finish what was sent: {names(sent)}.
    </p>
  );
}

const MOST_NAMES = 8;

function names(all: readonly string[]): string {
  const shown = all.slice(0, MOST_NAMES).join(", ");
  return all.length > MOST_NAMES ? `${shown} and ${all.length - MOST_NAMES} more` : shown;
}
