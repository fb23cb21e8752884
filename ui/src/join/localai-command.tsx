/** The command for a worker of LocalAI's, which knows no join codes: it shows the registration token. */

import { useState } from "react";

import type { Schema } from "../api/client";
import { CodeBlock, WholeWords } from "../parts/code-block";
import { TextField } from "../parts/fields";
import { Section } from "../parts/page";
import { Notice } from "../parts/states";
import { localAiCommand } from "./commands";
import styles from "./join.module.css";
import type { Machine } from "./page";
import { joinUrl, natsProblem, natsUrls, urlProblem } from "./urls";

export function LocalAiCommand({ joining, machine }: { joining: Schema<"JoiningView">; machine: Machine }) {
  const reachable = joinUrl(joining.url, window.location.origin);
  const [url, setUrl] = useState(reachable.url);
  const problem = url === reachable.url ? reachable.problem : "";
  const nats = natsProblem(joining.nats_urls);
  if (!joining.by_token) {
    return (
      <Section title="Run this on the new machine">
        <Notice tone="red">
          The registration token lets nobody in: this fleet runs with --no-registration-by-token, and workers of
          LocalAI's know no other way. Start the frontend without it, or use a Corral worker.
        </Notice>
      </Section>
    );
  }
  const text = localAiCommand({
    url,
    nats: natsUrls(joining.nats_urls, url),
    system: machine.system,
    gpu: machine.gpu,
  });
  return (
    <Section title="Run this on the new machine">
      <div className={styles.command}>
        <TextField
          label="Where it reaches this frontend"
          value={url}
          onChange={setUrl}
          error={urlProblem(url)}
          isMono
        />
        {problem !== "" && (
          <Notice tone="yellow">
            <WholeWords text={problem} />
          </Notice>
        )}
        {nats !== "" && <Notice tone="yellow">{nats.replace("CORRAL_NATS_URL", "LOCALAI_NATS_URL")}</Notice>}
        <CodeBlock label="Start command" text={text} canWrap />
        <p className={styles.hint}>
          It asks for the registration token, which all workers of LocalAI's share and this page never shows: it was
          printed when the fleet first started, and with corral up it is in credentials.json in the data directory.
        </p>
        {joining.approves_by_token && <Notice tone="yellow">This fleet approves whoever has the token.</Notice>}
        <p className={styles.hint}>
          Such a worker has no secret of its own: the fleet knows it by its name. Give it one that no other node has.
        </p>
      </div>
    </Section>
  );
}
