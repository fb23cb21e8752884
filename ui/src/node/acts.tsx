/** What can be done with a node as a whole: drain it, resume it, remove it. Each with its plan first. */

import { useState } from "react";

import { answer, api } from "../api/client";
import { sentenceOf } from "../api/errors";
import type { NodeRow } from "../live/topics";
import { Button } from "../parts/button";
import { useOpenAct } from "../parts/filters";
import { Notice } from "../parts/states";
import { useMay } from "../shell/session";
import { DrainDialog } from "./drain-dialog";
import { RemoveDialog } from "./remove-dialog";

const ACTS = ["drain", "remove"] as const;

export function NodeActs({ node }: { node: NodeRow }) {
  const { act, open, close } = useOpenAct(ACTS);
  const mayAct = useMay("nodes.act");
  const mayAdmit = useMay("nodes.admit");
  return (
    <>
      {mayAct && node.status === "draining" && <Resume node={node} />}
      {mayAct && node.status !== "draining" && node.status !== "pending" && (
        <Button onPress={() => open("drain")}>Drain</Button>
      )}
      {mayAct && node.status === "draining" && <Button onPress={() => open("drain")}>Force the drain</Button>}
      {mayAdmit && <Button onPress={() => open("remove")}>{node.status === "pending" ? "Turn away" : "Remove"}</Button>}
      {mayAct && act === "drain" && node.status !== "pending" && <DrainDialog node={node} onClose={close} />}
      {mayAdmit && act === "remove" && <RemoveDialog node={node} onClose={close} />}
    </>
  );
}

/** Nothing ends by it, so that there is nothing to plan. */
function Resume({ node }: { node: NodeRow }) {
  const [error, setError] = useState("");
  const resume = async () => {
    setError("");
    try {
      await answer(api.POST("/api/v1/nodes/{id}/resume", { params: { path: { id: node.id } } }));
    } catch (refusal) {
      setError(sentenceOf(refusal));
    }
  };
  return (
    <>
      {error !== "" && <Notice tone="red">{error}</Notice>}
      <Button look="primary" onPress={() => void resume()}>
        Resume
      </Button>
    </>
  );
}
