/** A machine that wants in: what it says of itself, what to compare, and the decision. */

import { useState } from "react";

import { answer, api } from "../api/client";
import type { NodeRow } from "../live/topics";
import { Button } from "../parts/button";
import { CopyText } from "../parts/code-block";
import { bytes, count } from "../parts/format";
import { Fact, Facts, Section } from "../parts/page";
import { Failure } from "../parts/states";
import { Age } from "../parts/time";
import { useMay } from "../shell/session";

export function Approval({ node }: { node: NodeRow }) {
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const mayAdmit = useMay("nodes.admit");
  const approve = async () => {
    setBusy(true);
    setError(null);
    try {
      await answer(api.POST("/api/v1/nodes/{id}/approve", { params: { path: { id: node.id } } }));
    } catch (refusal) {
      setError(refusal);
      setBusy(false);
    }
  };
  return (
    <Section
      title="Waits for approval"
      actions={
        mayAdmit && (
          <Button look="primary" isSmall isDisabled={isBusy} onPress={() => void approve()}>
            {isBusy ? "Approving…" : `Approve ${node.name}`}
          </Button>
        )
      }
    >
      {error !== null && <Failure error={error} />}
      <Facts>
        <Fact name="Waits since">
          <Age at={node.pending_since} />
        </Fact>
        <Fact name="Fingerprint">
          {node.fingerprint === "" ? "none: it is no Corral worker" : <CopyText text={node.fingerprint} />}
        </Fact>
        <Fact name="Address">{node.address || "none"}</Fact>
        <Fact name="Hardware">
          {[node.capability, node.gpus === null ? "" : `${count(node.gpus)} GPUs`, `${bytes(node.ram.total)} RAM`]
            .filter(Boolean)
            .join(", ")}
        </Fact>
        <Fact name="Before you approve">
          Compare the fingerprint with the one that the worker shows on its own screen.
        </Fact>
        <Fact name="In a terminal">
          <CopyText text={`corral nodes approve ${node.name}`} />
        </Fact>
      </Facts>
    </Section>
  );
}
