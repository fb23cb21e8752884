/** Machines that want in: what each says of itself first, then the decision about one or many. */

import { useState } from "react";

import { answer, api } from "../api/client";
import { sentenceOf } from "../api/errors";
import { useTopic } from "../live/live";
import type { NodeRow } from "../live/topics";
import { Button } from "../parts/button";
import { bytes, count, plural } from "../parts/format";
import { gpuText } from "../parts/hardware";
import { Section } from "../parts/page";
import { addressOf, PageLink } from "../parts/page-link";
import { Notice } from "../parts/states";
import { byText, type Column, Table } from "../parts/table";
import { Age } from "../parts/time";
import { useMay } from "../shell/session";
import styles from "./fleet.module.css";

const COLUMNS: readonly Column<NodeRow>[] = [
  {
    key: "name",
    title: "Machine",
    width: "minmax(72px, 1fr)",
    cell: (node) => <PageLink href={addressOf.node(node.id)}>{node.name}</PageLink>,
    sort: byText((node) => node.name),
  },
  {
    key: "fingerprint",
    title: "Fingerprint",
    width: "minmax(142px, 1.4fr)",
    cell: (node) => <code>{node.fingerprint || "none"}</code>,
  },
  {
    key: "address",
    title: "Address",
    width: "minmax(110px, 1fr)",
    from: "tablet",
    cell: (node) => node.address || "none",
  },
  { key: "hardware", title: "Hardware", width: "minmax(120px, 1.4fr)", from: "wide", cell: hardwareOf },
  {
    key: "since",
    title: "Waits",
    width: "84px",
    from: "tablet",
    isNumber: true,
    cell: (node) => <Age at={node.pending_since} />,
  },
];

function hardwareOf(node: NodeRow): string {
  const vram = node.vram.total ? `${bytes(node.vram.total)} VRAM` : "";
  return [gpuText(node), vram, `${bytes(node.ram.total)} RAM`].filter(Boolean).join(", ");
}

export function Pending() {
  const { items } = useTopic("nodes");
  const mayAdmit = useMay("nodes.admit");
  const waiting = [...items.values()].filter((node) => node.status === "pending");
  if (waiting.length === 0 || !mayAdmit) return null;
  return <WaitingNodes nodes={waiting} />;
}

function WaitingNodes({ nodes }: { nodes: readonly NodeRow[] }) {
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const [refusals, setRefusals] = useState<readonly string[]>([]);
  const [isBusy, setBusy] = useState(false);
  const chosen = nodes.filter((node) => selected.has(node.id));
  const approve = async () => {
    setBusy(true);
    setRefusals(await approveAll(chosen));
    setSelected(new Set());
    setBusy(false);
  };
  return (
    <Section
      title={`Waiting for approval, ${count(nodes.length)}`}
      isBare
      actions={
        <Button isSmall look="primary" isDisabled={chosen.length === 0 || isBusy} onPress={() => void approve()}>
          {isBusy ? "Approving…" : chosen.length === 0 ? "Approve" : `Approve ${plural(chosen.length, "machine")}`}
        </Button>
      }
    >
      <p className={styles.advice}>Compare each fingerprint with the one that the worker shows on its own screen.</p>
      {refusals.map((refusal) => (
        <Notice key={refusal} tone="red">
          {refusal}
        </Notice>
      ))}
      <Table
        label="Machines that wait for approval"
        rows={nodes}
        columns={COLUMNS}
        rowKey={(node) => node.id}
        selection={{ selected, onChange: setSelected }}
      />
    </Section>
  );
}

/** Approves one after the other, and goes on when one is refused. Returns the refusals as sentences. */
async function approveAll(nodes: readonly NodeRow[]): Promise<string[]> {
  const refusals: string[] = [];
  for (const node of nodes) {
    try {
      await answer(api.POST("/api/v1/nodes/{id}/approve", { params: { path: { id: node.id } } }));
    } catch (error) {
      refusals.push(`${node.name}: ${sentenceOf(error)}`);
    }
  }
  return refusals;
}
