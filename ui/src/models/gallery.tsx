/** What galleries offer: found by words, use and size, with how many nodes each entry fits. */

import { useEffect, useState } from "react";

import { Button } from "../parts/button";
import { SearchField, Select } from "../parts/fields";
import { useFilters } from "../parts/filters";
import { count } from "../parts/format";
import { Section } from "../parts/page";
import { PageLink } from "../parts/page-link";
import { Empty, Failure, Loading, Notice } from "../parts/states";
import { type Column, Table } from "../parts/table";
import { useMay } from "../shell/session";
import styles from "./gallery.module.css";
import { EntryDialog } from "./gallery-entry";
import { FitWord, sizeText } from "./gallery-fit";
import { modelPath } from "./place";
import { PullDialog } from "./pull-dialog";
import { type GalleryModel, useGallery } from "./queries";

const USES = [
  { id: "all", label: "Any use" },
  { id: "chat", label: "Chat" },
  { id: "vision", label: "Vision" },
  { id: "embeddings", label: "Embeddings" },
  { id: "rerank", label: "Rerank" },
  { id: "tts", label: "Speech" },
  { id: "transcript", label: "Transcription" },
];

const SIZES = [
  { id: "all", label: "Any size" },
  { id: "1GB", label: "Up to 1 GB" },
  { id: "4GB", label: "Up to 4 GB" },
  { id: "8GB", label: "Up to 8 GB" },
  { id: "24GB", label: "Up to 24 GB" },
];

export function Gallery() {
  const filters = useFilters();
  const [use, size] = [filters.get("use"), filters.get("size")];
  const term = useLater(filters.get("term"));
  const found = useGallery({ term, use, maxBytes: size });
  const pages = found.data?.pages ?? [];
  const entries = pages.flatMap((page) => page.items);
  const first = pages[0];
  const open = filters.get("entry");
  const mayAct = useMay("models.act");
  const [pulled, setPulled] = useState<{ reference: string; build: string } | null>(null);
  return (
    <>
      <div className={styles.filters}>
        <SearchField
          label="Search names, tags and descriptions"
          value={filters.get("term")}
          onChange={(text) => filters.set("term", text)}
        />
        <Choice label="Use" choices={USES} value={use} onChange={(next) => filters.set("use", next)} />
        <Choice label="Size" choices={SIZES} value={size} onChange={(next) => filters.set("size", next)} />
        {first !== undefined && <span className={styles.count}>{count(first.total)} found</span>}
      </div>
      {first?.galleries
        .filter((gallery) => gallery.problem !== "")
        .map((gallery) => (
          <Notice key={gallery.name} tone="yellow">
            <span className={styles.problem}>
              The gallery {gallery.name}: {gallery.problem}
            </span>
          </Notice>
        ))}
      <Section isBare>
        {found.error !== null && (
          <Failure
            error={found.error}
            onRetry={() => void found.refetch()}
            works="Models that are installed go on answering. A reference such as hf://ORG/REPO needs no gallery."
          />
        )}
        {first === undefined && found.error === null && <Loading label="Reading the galleries" lines={6} />}
        {first !== undefined && entries.length === 0 && (
          <Nothing term={term} near={first.near} onTerm={(text) => filters.set("term", text)} />
        )}
        {entries.length > 0 && (
          <Table
            label="Models of galleries"
            rows={entries}
            columns={columnsOf((id) => filters.set("entry", id), mayAct)}
            rowKey={(entry) => entry.id}
            onRow={(entry) => filters.set("entry", entry.id)}
          />
        )}
      </Section>
      {found.hasNextPage && (
        <div>
          <Button isDisabled={found.isFetchingNextPage} onPress={() => void found.fetchNextPage()}>
            {found.isFetchingNextPage ? "Loading…" : `Show more of ${count(first?.total)}`}
          </Button>
        </div>
      )}
      {open !== "" && pulled === null && (
        <EntryDialog
          id={open}
          onClose={() => filters.set("entry", "")}
          onPull={(build) => setPulled({ reference: open, build })}
        />
      )}
      {pulled !== null && (
        <PullDialog
          {...pulled}
          onClose={() => {
            setPulled(null);
            filters.set("entry", "");
          }}
        />
      )}
    </>
  );
}

function Choice({
  label,
  choices,
  value,
  onChange,
}: {
  label: string;
  choices: readonly { id: string; label: string }[];
  value: string;
  onChange: (value: string) => void;
}) {
  const known = choices.some(({ id }) => id === value) ? value : "all";
  return (
    <Select
      label={label}
      isLabelHidden
      choices={choices}
      value={known}
      onChange={(next) => onChange(next === "all" ? "" : next)}
    />
  );
}

const PAUSE_MILLISECONDS = 250;

/** A text once nobody has typed for a moment. */
function useLater(text: string): string {
  const [later, setLater] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => setLater(text), PAUSE_MILLISECONDS);
    return () => clearTimeout(timer);
  }, [text]);
  return later;
}

function columnsOf(open: (id: string) => void, mayAct: boolean): readonly Column<GalleryModel>[] {
  return [
    {
      key: "name",
      title: "Name",
      width: "minmax(140px, 2fr)",
      cell: (entry) => (
        <button type="button" className={styles.name} onClick={() => open(entry.id)}>
          {entry.name}
        </button>
      ),
    },
    { key: "size", title: "Size", width: "88px", isNumber: true, cell: (entry) => sizeText(entry) },
    { key: "fit", title: "Fits", width: "108px", cell: (entry) => <FitWord fit={entry.fit} /> },
    {
      key: "uses",
      title: "For",
      width: "minmax(90px, 1fr)",
      from: "tablet",
      cell: (entry) => entry.uses.join(", ") || "–",
    },
    {
      key: "backend",
      title: "Backend",
      width: "minmax(90px, 1fr)",
      from: "wide",
      cell: (entry) => entry.backend || "–",
    },
    {
      key: "licence",
      title: "Licence",
      width: "minmax(80px, 1fr)",
      from: "wide",
      cell: (entry) => entry.license || "–",
    },
    {
      key: "about",
      title: "About",
      width: "minmax(120px, 3fr)",
      from: "wide",
      cell: (entry) => firstLine(entry.description),
    },
    {
      key: "here",
      title: "Here",
      width: "64px",
      from: "tablet",
      cell: (entry) =>
        entry.is_installed ? (
          <PageLink href={modelPath(entry.name)} className={styles.near}>
            Open
          </PageLink>
        ) : (
          mayAct && (
            <button type="button" className={styles.near} onClick={() => open(entry.id)}>
              Pull…
            </button>
          )
        ),
    },
  ];
}

function firstLine(text: string): string {
  return text.trim().split("\n", 1)[0] ?? "";
}

function Nothing({ term, near, onTerm }: { term: string; near: readonly string[]; onTerm: (term: string) => void }) {
  const mayAct = useMay("models.act");
  return (
    <Empty command="corral models search">
      No model of the galleries {term === "" ? "is like that" : `mentions “${term}”`}.{" "}
      {near.length > 0 ? "Did you mean " : mayAct ? "References such as hf://ORG/REPO need no gallery." : ""}
      {near.map((name, index) => (
        <span key={name}>
          {index > 0 && " or "}
          <button type="button" className={styles.near} onClick={() => onTerm(name)}>
            {name}
          </button>
        </span>
      ))}
      {near.length > 0 && "?"}
    </Empty>
  );
}
