/** The command for a worker of Corral's: a code that lets one machine in, made with one press. */

import { useState } from "react";

import { answer, api, type Schema } from "../api/client";
import { Button } from "../parts/button";
import { CodeBlock, CopyText, copyText, WholeWords } from "../parts/code-block";
import { Checkbox, TextField } from "../parts/fields";
import { useSubmission } from "../parts/form-dialog";
import { Section } from "../parts/page";
import { Failure, Notice } from "../parts/states";
import { Moment } from "../parts/time";
import { askingCommand, checkCommand, joinCommand, setupCommand } from "./commands";
import styles from "./join.module.css";
import type { Made } from "./page";
import { joinUrl, natsProblem, urlProblem } from "./urls";

interface CorralCommandProps {
  readonly joining: Schema<"JoiningView">;
  readonly made: Made | null;
  readonly onMade: (made: Made) => void;
}

export function CorralCommand({ joining, made, onMade }: CorralCommandProps) {
  const reachable = joinUrl(joining.url, window.location.origin);
  const [url, setUrl] = useState(reachable.url);
  const [approve, setApprove] = useState(false);
  const [isCopied, setCopied] = useState(false);
  const submission = useSubmission(async () => {
    const body = { expires_in: "1h", uses: 1, labels: {}, approve };
    const created = await answer(api.POST("/api/v1/invitations", { body }));
    onMade(created);
    setCopied(await isTaken(joinCommand(url, created)));
  });
  const problem = url === reachable.url ? reachable.problem : "";
  const nats = natsProblem(joining.nats_urls);
  return (
    <Section title="Run this on the new machine">
      <div className={styles.command}>
        <TextField
          label="Where it reaches this frontend"
          value={url}
          onChange={setUrl}
          error={urlProblem(url)}
          hint="The machine calls this address; frontends call its ports in turn."
          isMono
        />
        {problem !== "" && (
          <Notice tone="yellow">
            <WholeWords text={problem} />
          </Notice>
        )}
        {nats !== "" && <Notice tone="yellow">{nats}</Notice>}
        {made === null ? (
          <>
            <Checkbox isSelected={approve} onChange={setApprove}>
              It takes part at once: whoever has the code needs nobody's approval
            </Checkbox>
            <div>
              <Button
                look="primary"
                isDisabled={submission.isActing || urlProblem(url) !== ""}
                onPress={submission.submit}
              >
                {submission.isActing ? "Asking…" : "Make and copy the command"}
              </Button>
            </div>
            {submission.error !== null && <Failure error={submission.error} />}
          </>
        ) : (
          <MadeCommand url={url} made={made} isCopied={isCopied} again={submission.submit} />
        )}
      </div>
    </Section>
  );
}

/** Whether the clipboard took it; where it did not, the button beside the command is still there. */
async function isTaken(command: string): Promise<boolean> {
  try {
    await copyText(command);
    return true;
  } catch {
    return false;
  }
}

interface MadeCommandProps {
  readonly url: string;
  readonly made: Made;
  readonly isCopied: boolean;
  readonly again: () => void;
}

function MadeCommand({ url, made, isCopied, again }: MadeCommandProps) {
  return (
    <>
      <CodeBlock label="Join command" text={joinCommand(url, made)} canWrap />
      <p className={styles.hint}>
        {isCopied && <strong>It is copied: paste it into a shell of the machine. </strong>}
        The code is for one machine, until <Moment at={made.expires_at} />. It goes through a pipe, so no list of
        processes shows it.{" "}
        <Button isSmall look="quiet" onPress={again}>
          Make another
        </Button>
      </p>
      <details className={styles.more}>
        <summary>“corral: command not found”? Put Corral on the machine first</summary>
        <p>
          With Python 3.11 or newer and a network, paste this in a clone of the repository. It fetches everything into
          that folder, as any user, and joins. Later, <code>.venv/bin/corral worker</code> there starts it again.
        </p>
        <CodeBlock label="Command that sets up and joins" text={setupCommand(url, made)} canWrap />
      </details>
      <details className={styles.more}>
        <summary>Type the code at the machine instead</summary>
        <CodeBlock label="Command that asks" text={askingCommand(url, made.pin)} canWrap />
        <p>
          It asks for: <CopyText text={made.code} />
        </p>
      </details>
      <details className={styles.more}>
        <summary>Will it work? Check first; the code is not used up</summary>
        <CodeBlock label="Check command" text={checkCommand(url, made)} canWrap />
      </details>
    </>
  );
}
