/** What the doctor finds: every check with its sentence, the bad ones first. */

import { useQuery } from "@tanstack/react-query";

import { answer, api } from "../api/client";
import { Button } from "../parts/button";
import { CopyText } from "../parts/code-block";
import { Dialog } from "../parts/dialog";
import { Failure, Loading } from "../parts/states";
import { Glyph } from "../parts/status-pill";
import { type StateWord, stateWord } from "../words.gen";
import styles from "./fleet.module.css";

const LEVELS = ["problem", "warning", "ok"];

export function DoctorDialog({ onClose }: { onClose: () => void }) {
  const report = useQuery({ queryKey: ["doctor"], queryFn: () => answer(api.GET("/api/v1/doctor")) });
  return (
    <Dialog
      title="What the doctor finds"
      onClose={onClose}
      isWide
      footer={
        <>
          <CopyText text="corral doctor" />
          <Button onPress={() => void report.refetch()} icon="retry">
            Look again
          </Button>
        </>
      }
    >
      {report.isPending && <Loading label="Asking the doctor" />}
      {report.isError && <Failure error={report.error} />}
      {report.data && (
        <ul className={styles.findings}>
          {report.data.findings
            .toSorted((one, other) => LEVELS.indexOf(one.level) - LEVELS.indexOf(other.level))
            .map((finding) => (
              <li key={finding.check} className={styles.finding}>
                <Glyph word={wordOf(finding.level)} />
                <strong>{finding.check}</strong>
                <span>
                  {finding.summary}
                  {finding.remedy && <span className={styles.quiet}> {finding.remedy}</span>}
                </span>
              </li>
            ))}
        </ul>
      )}
    </Dialog>
  );
}

function wordOf(level: string): StateWord {
  if (level === "ok") return stateWord("node", "healthy");
  return stateWord("severity", level === "problem" ? "alarm" : "warning");
}
