/** Which machine it is: that decides the command. */

import { Section } from "../parts/page";
import { Segments } from "../parts/segments";
import { type Gpu, gpuHint, gpusOf, type System, systemsOf, type Worker } from "./commands";
import styles from "./join.module.css";
import type { Machine } from "./page";

const WORKERS: { id: Worker; label: string }[] = [
  { id: "corral", label: "Corral worker" },
  { id: "localai", label: "LocalAI worker" },
];
const SYSTEMS: Readonly<Record<System, string>> = { linux: "Linux", container: "Container", macos: "macOS" };
const GPUS: Readonly<Record<Gpu, string>> = {
  none: "No GPU",
  nvidia: "NVIDIA",
  amd: "AMD",
  intel: "Intel",
  apple: "Apple",
};

export function Choices({ machine, onChange }: { machine: Machine; onChange: (machine: Machine) => void }) {
  const setSystem = (system: System) => onChange({ ...machine, system, gpu: gpusOf(system)[0] ?? "none" });
  const hint = gpuHint(machine.gpu);
  return (
    <Section title="Which machine?">
      <div className={styles.choices}>
        <Segments
          label="Worker"
          isLabelShown
          segments={WORKERS}
          value={machine.worker}
          onChange={(worker) => onChange({ worker, system: "linux", gpu: "none" })}
        />
        <Segments
          label="System"
          isLabelShown
          segments={systemsOf(machine.worker).map((id) => ({ id, label: SYSTEMS[id] }))}
          value={machine.system}
          onChange={setSystem}
        />
        <Segments
          label="GPU"
          isLabelShown
          segments={gpusOf(machine.system).map((id) => ({ id, label: GPUS[id] }))}
          value={machine.gpu}
          onChange={(gpu) => onChange({ ...machine, gpu })}
        />
      </div>
      {hint !== "" && <p className={styles.hint}>{hint}</p>}
    </Section>
  );
}
