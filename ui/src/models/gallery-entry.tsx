/** One entry of a gallery: what it is, which build suits the fleet and why, what would be fetched. */

import { useState } from "react";

import type { Schema } from "../api/client";
import { Button, LinkButton } from "../parts/button";
import { CodeBlock } from "../parts/code-block";
import { Dialog } from "../parts/dialog";
import { bytes, count } from "../parts/format";
import { Fact, Facts } from "../parts/page";
import { Failure, Loading, Notice } from "../parts/states";
import { WordPill } from "../parts/status-pill";
import { useMay } from "../shell/session";
import styles from "./gallery-entry.module.css";
import { sizeText } from "./gallery-fit";
import { modelPath } from "./place";
import { useGalleryEntry } from "./queries";

type Detail = Schema<"GalleryModelDetail">;

export function EntryDialog({
  id,
  onClose,
  onPull,
}: {
  id: string;
  onClose: () => void;
  onPull: (build: string) => void;
}) {
  const entry = useGalleryEntry(id);
  const mayAct = useMay("models.act");
  const [build, setBuild] = useState("");
  const name = entry.data?.entry.name ?? id;
  return (
    <Dialog
      title={name}
      isWide
      onClose={onClose}
      footer={
        <>
          <Button onPress={onClose}>Close</Button>
          {entry.data?.entry.is_installed && <LinkButton href={modelPath(name)}>Open the model</LinkButton>}
          {mayAct && entry.data !== undefined && (
            <Button look="primary" icon="download" onPress={() => onPull(build)}>
              Pull
            </Button>
          )}
        </>
      }
    >
      {entry.error !== null && <Failure error={entry.error} onRetry={() => void entry.refetch()} />}
      {entry.data === undefined && entry.error === null && <Loading label="Asking hubs about this model" lines={5} />}
      {entry.data !== undefined && <Details detail={entry.data} build={build} onBuild={setBuild} />}
    </Dialog>
  );
}

function Details({ detail, build, onBuild }: { detail: Detail; build: string; onBuild: (build: string) => void }) {
  return (
    <>
      {detail.entry.description !== "" && <p className={styles.about}>{detail.entry.description}</p>}
      <EntryFacts detail={detail} />
      <Builds detail={detail} build={build} onBuild={onBuild} />
      {[...detail.problems, ...(detail.estimate?.problems ?? [])].map((problem) => (
        <Notice key={problem} tone="yellow">
          {problem}
        </Notice>
      ))}
      <Files files={detail.files} />
      <details>
        <summary>Its configuration</summary>
        <CodeBlock label="Configuration" text={JSON.stringify(detail.config, null, 2)} />
      </details>
    </>
  );
}

function EntryFacts({ detail }: { detail: Detail }) {
  const { entry, estimate } = detail;
  return (
    <Facts>
      <Fact name="For">{entry.uses.join(", ") || "not stated"}</Fact>
      <Fact name="Backend">{entry.backend || "not stated"}</Fact>
      <Fact name="Licence">{detail.license || entry.license || "not stated"}</Fact>
      {estimate !== null && (
        <>
          <Fact name="Size">{sizeText(estimate)}</Fact>
          <Fact name="Memory">{memoryText(estimate)}</Fact>
          {estimate.parameters > 0 && (
            <Fact name="Weights">
              {[`${parametersText(estimate.parameters)} parameters`, estimate.architecture, estimate.quantisation]
                .filter(Boolean)
                .join(", ")}
            </Fact>
          )}
          {estimate.disk_free_bytes !== null && <Fact name="Disk">{bytes(estimate.disk_free_bytes)} free</Fact>}
        </>
      )}
      {entry.urls.length > 0 && (
        <Fact name="More">
          {entry.urls.map((url) => (
            <OutsideLink key={url} url={url} />
          ))}
        </Fact>
      )}
    </Facts>
  );
}

function memoryText(estimate: NonNullable<Detail["estimate"]>): string {
  if (estimate.memory_bytes === null) return "not known";
  const longest = estimate.max_context > 0 ? ` of at most ${count(estimate.max_context)}` : "";
  return `about ${bytes(estimate.memory_bytes)} with a context of ${count(estimate.context)} tokens${longest}`;
}

const BILLION = 1e9;
const MILLION = 1e6;

function parametersText(number: number): string {
  return number >= BILLION ? `${(number / BILLION).toFixed(1)} billion` : `${Math.round(number / MILLION)} million`;
}

/** A link out of the fleet: only to the web, and the other side learns nothing of this page. */
function OutsideLink({ url }: { url: string }) {
  if (!/^https?:\/\//i.test(url)) return <span className={styles.url}>{url}</span>;
  return (
    <a className={styles.url} href={url} target="_blank" rel="noopener noreferrer">
      {url}
    </a>
  );
}

/** All builds with the server's verdict; one may be chosen instead of the one that suits best. */
function Builds({ detail, build, onBuild }: { detail: Detail; build: string; onBuild: (build: string) => void }) {
  if (detail.builds.length === 0) return null;
  return (
    <fieldset className={styles.builds}>
      <legend>Builds</legend>
      {detail.builds.map((each) => (
        <label key={each.name} className={styles.build}>
          <input
            type="radio"
            name="build"
            checked={build === "" ? each.is_chosen : build === each.name}
            disabled={!each.is_usable && !each.is_chosen && detail.builds.length === 1}
            onChange={() => onBuild(each.is_chosen ? "" : each.name)}
          />
          <span className={styles.buildName}>{each.name}</span>
          <span className={styles.size}>{sizeText(each)}</span>
          <WordPill word={each.is_usable ? USABLE : UNUSABLE} />
          <span className={styles.reason}>
            {each.is_chosen ? "suits the fleet best: " : ""}
            {each.reason}
          </span>
        </label>
      ))}
    </fieldset>
  );
}

const USABLE = { label: "Fits", tone: "green", glyph: "●", tooltip: "Some node of the fleet can run it." } as const;
const UNUSABLE = {
  label: "Does not fit",
  tone: "purple",
  glyph: "⊘",
  tooltip: "No node of the fleet can run it.",
} as const;

function Files({ files }: { files: Detail["files"] }) {
  if (files.length === 0) return null;
  return (
    <details>
      <summary>{files.length === 1 ? "1 file" : `${count(files.length)} files`}</summary>
      <ul className={styles.files}>
        {files.map((file) => (
          <li key={file.path}>
            <code>{file.path}</code> {file.bytes === null ? "" : `(${bytes(file.bytes)})`}
            <span className={styles.reason}>
              {file.uri}
              {file.sha256 === "" ? " · without a promised digest" : ""}
            </span>
          </li>
        ))}
      </ul>
    </details>
  );
}
