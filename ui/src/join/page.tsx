/** Adds a machine: one command with real addresses, and live steps until it is healthy. */

import { useState } from "react";

import { useJoining } from "../access/queries";
import type { Schema } from "../api/client";
import { Page } from "../parts/page";
import { Failure, Loading } from "../parts/states";
import { Arrival } from "./arrival";
import { Choices } from "./choices";
import type { Gpu, System, Worker } from "./commands";
import { CorralCommand } from "./corral-command";
import styles from "./join.module.css";
import { LocalAiCommand } from "./localai-command";

export type Made = Schema<"CreatedInvitation">;

export interface Machine {
  readonly worker: Worker;
  readonly system: System;
  readonly gpu: Gpu;
}

export default function JoinPage() {
  const { data, error, refetch } = useJoining();
  const [machine, setMachine] = useState<Machine>({ worker: "corral", system: "linux", gpu: "none" });
  const [made, setMade] = useState<Made | null>(null);
  const isCorral = machine.worker === "corral";
  return (
    <Page title="Add a machine">
      <div className={styles.columns}>
        <div className={styles.steps}>
          <Choices machine={machine} onChange={setMachine} />
          {error !== null && <Failure error={error} onRetry={() => void refetch()} />}
          {data === undefined && error === null && <Loading />}
          {data !== undefined && isCorral && <CorralCommand joining={data} made={made} onMade={setMade} />}
          {data !== undefined && !isCorral && <LocalAiCommand joining={data} machine={machine} />}
        </div>
        <Arrival key={machine.worker} worker={machine.worker} made={isCorral ? made : null} />
      </div>
    </Page>
  );
}
