/** What galleries offer: search, how many nodes could have it, and where it is. */

import { useCallback, useMemo } from "react";
import { useLocation } from "wouter";

import { Button } from "../parts/button";
import { Checkbox, SearchField, Select } from "../parts/fields";
import { useFilters } from "../parts/filters";
import { plural } from "../parts/format";
import { Section } from "../parts/page";
import { Empty, Failure, Loading } from "../parts/states";
import { byNumber, byText, type Column, Table } from "../parts/table";
import { useMay } from "../shell/session";
import { type Choice, choiceOf } from "./acts";
import styles from "./backends.module.css";
import { Galleries } from "./galleries";
import { OfferPanel } from "./offer-panel";
import { findOffers, fitText, type OfferFilter, type OfferRow, offerRow, tagsOf } from "./offers";
import { useOffers } from "./queries";

interface GalleryProps {
  /** The backend that the address names; empty where it names none. */
  readonly named: string;
  readonly onAct: (choice: Choice) => void;
}

export function Gallery({ named, onAct }: GalleryProps) {
  const { data, error, refetch } = useOffers();
  const filters = useFilters();
  const [, navigate] = useLocation();
  const rows = useMemo(() => data?.items.map(offerRow) ?? [], [data]);
  if (error !== null) return <Failure error={error} onRetry={() => void refetch()} works={STILL} />;
  if (data === undefined) return <Loading />;
  const shown = findOffers(rows, {
    text: filters.get("q"),
    tag: filters.get("tag"),
    state: filters.get("state") as OfferFilter,
    isWhole: filters.get("builds") === "all",
  });
  const name = filters.get("backend") || named;
  const opened = rows.find((row) => row.offer.name === name);
  return (
    <>
      <OfferFilters rows={rows} />
      <div className={styles.beside}>
        <Section isBare>
          <OfferTable rows={shown} near={data.near} onAct={onAct} />
        </Section>
        {opened !== undefined && (
          <OfferPanel
            row={opened}
            onAct={onAct}
            onClose={() => (named === "" ? filters.set("backend", "") : navigate("/"))}
          />
        )}
      </div>
      <Galleries galleries={data.galleries} />
    </>
  );
}

const STILL = "What is installed keeps working; the tab Installed shows it.";

function OfferFilters({ rows }: { rows: readonly OfferRow[] }) {
  const filters = useFilters();
  const tags = useMemo(() => tagsOf(rows), [rows]);
  return (
    <search className={styles.filters}>
      <SearchField label="Find a backend" value={filters.get("q")} onChange={(text) => filters.set("q", text)} />
      <Select
        label="Tag"
        isLabelHidden
        choices={[{ id: "", label: "Any tag" }, ...tags.map((tag) => ({ id: tag, label: tag }))]}
        value={filters.get("tag")}
        onChange={(tag) => filters.set("tag", tag)}
      />
      <Select
        label="State"
        isLabelHidden
        choices={[
          { id: "", label: "All" },
          { id: "fits", label: "Fits some node" },
          { id: "installed", label: "Installed" },
        ]}
        value={filters.get("state")}
        onChange={(state) => filters.set("state", state)}
      />
      <Checkbox
        isSelected={filters.get("builds") === "all"}
        onChange={(isWhole) => filters.set("builds", isWhole ? "all" : "")}
      >
        Also builds for certain hardware
      </Checkbox>
    </search>
  );
}

interface OfferTableProps {
  readonly rows: readonly OfferRow[];
  readonly near: readonly string[];
  readonly onAct: (choice: Choice) => void;
}

function OfferTable({ rows, near, onAct }: OfferTableProps) {
  const filters = useFilters();
  const may = useMay("backends.act");
  const { set } = filters;
  const open = useCallback((row: OfferRow) => set("backend", row.offer.name), [set]);
  const columns = useMemo(() => columnsOf(open, may ? onAct : null), [open, may, onAct]);
  if (rows.length === 0) {
    const hint = near.length > 0 ? ` Did you mean ${near.join(" or ")}?` : "";
    return <Empty command="corral gallery search NAME">No backend is found.{hint}</Empty>;
  }
  return (
    <Table
      label="Backends that galleries offer"
      rows={rows}
      columns={columns}
      rowKey={(row) => row.offer.id}
      rowHeight={44}
      onRow={open}
      isMarked={(row) => row.offer.name === filters.get("backend")}
    />
  );
}

function columnsOf(open: (row: OfferRow) => void, act: ((choice: Choice) => void) | null): readonly Column<OfferRow>[] {
  const columns: Column<OfferRow>[] = [
    {
      key: "name",
      title: "Backend",
      width: "minmax(120px, 2.4fr)",
      sort: byText((row) => row.offer.name),
      cell: (row) => <OfferName row={row} onOpen={() => open(row)} />,
    },
    {
      key: "fit",
      title: "Fits",
      width: "minmax(104px, 1fr)",
      sort: byNumber((row) => row.fits),
      cell: (row) => <Fit row={row} />,
    },
    {
      key: "installed",
      title: "Installed on",
      width: "minmax(84px, 0.7fr)",
      from: "tablet",
      sort: byNumber((row) => row.installed),
      cell: (row) => (row.installed === 0 ? <span className={styles.quiet}>–</span> : plural(row.installed, "node")),
    },
    {
      key: "version",
      title: "Version",
      width: "minmax(72px, 0.6fr)",
      from: "wide",
      cell: (row) => row.offer.version || "–",
    },
    { key: "gallery", title: "Gallery", width: "minmax(72px, 0.6fr)", from: "wide", cell: (row) => row.offer.gallery },
  ];
  if (act !== null) {
    columns.push({
      key: "act",
      title: "",
      width: "84px",
      isNumber: true,
      cell: (row) => (
        <Button
          isSmall
          aria-label={`Install ${row.offer.name}`}
          onPress={() => act(choiceOf("install", row.offer.name))}
        >
          Install…
        </Button>
      ),
    });
  }
  return columns;
}

function OfferName({ row, onOpen }: { row: OfferRow; onOpen: () => void }) {
  return (
    <span className={styles.twoLines}>
      <button type="button" className={styles.nameButton} onClick={onOpen}>
        {row.offer.name}
      </button>
      <span className={styles.quietLine}>{row.offer.description.split("\n")[0]}</span>
    </span>
  );
}

function Fit({ row }: { row: OfferRow }) {
  const isNowhere = row.nodes > 0 && row.fits + row.unknown === 0;
  return <span className={isNowhere ? styles.nowhere : undefined}>{fitText(row)}</span>;
}
