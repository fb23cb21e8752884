/** What is newer than what nodes have: from → to, with digests, and the nodes; and what nobody can tell. */

import { useQueryClient } from "@tanstack/react-query";
import { useMemo, useState } from "react";

import { answer, api } from "../api/client";
import { Button } from "../parts/button";
import { Checkbox } from "../parts/fields";
import { useFilters } from "../parts/filters";
import { plural, shortDigest } from "../parts/format";
import { Section } from "../parts/page";
import { Empty, Failure, Loading, Notice } from "../parts/states";
import { WordPill } from "../parts/status-pill";
import { byText, type Column, Table } from "../parts/table";
import { Age } from "../parts/time";
import { useMay } from "../shell/session";
import { type Choice, choiceOf } from "./acts";
import styles from "./backends.module.css";
import { namesText } from "./matrix-rows";
import { UPGRADES, useUpgrades } from "./queries";
import { type Build, FRESHNESS, findUpgrades, type UpgradeRow, upgradeRows } from "./upgrade-rows";

export function Upgrades({ onAct }: { onAct: (choice: Choice) => void }) {
  const { data, error, refetch } = useUpgrades();
  const filters = useFilters();
  const may = useMay("backends.act");
  const rows = useMemo(() => (data === undefined ? [] : upgradeRows(data)), [data]);
  const columns = useMemo(() => columnsOf(may ? onAct : null), [may, onAct]);
  if (error !== null) return <Failure error={error} onRetry={() => void refetch()} />;
  if (data === undefined) return <Loading />;
  const isWhole = filters.get("all") === "yes";
  const shown = findUpgrades(rows, { backend: filters.get("backend"), isWhole });
  return (
    <>
      <div className={styles.filters}>
        <Checkbox isSelected={isWhole} onChange={(isAll) => filters.set("all", isAll ? "yes" : "")}>
          Also what is current
        </Checkbox>
        {filters.get("backend") !== "" && (
          <Button isSmall look="quiet" icon="close" onPress={() => filters.set("backend", "")}>
            Only {filters.get("backend")}
          </Button>
        )}
        <span className={styles.pushed}>
          <Asked checkedAt={data.checked_at} />
          {may && <CheckNow checkedAt={data.checked_at} />}
        </span>
      </div>
      {data.problem !== "" && <Notice tone="yellow">Not up to date: {data.problem}.</Notice>}
      <Section isBare>
        {shown.length === 0 ? (
          <Empty command="corral backends outdated --refresh">
            {rows.length === 0 ? "No backend is installed that could be outdated." : "Nothing is outdated."}
          </Empty>
        ) : (
          <Table label="Upgrades" rows={shown} columns={columns} rowKey={(row) => row.key} rowHeight={48} />
        )}
      </Section>
    </>
  );
}

function Asked({ checkedAt }: { checkedAt: string | null }) {
  return (
    <span className={styles.quiet}>
      Galleries and registries were{" "}
      {checkedAt === null ? (
        "never asked yet"
      ) : (
        <>
          asked <Age at={checkedAt} />
        </>
      )}
    </span>
  );
}

const LOOKS = [1_000, 2_000, 4_000, 8_000, 15_000];

/** Asks galleries and registries now. Their answer is looked for a few times, since no stream tells of it. */
function CheckNow({ checkedAt }: { checkedAt: string | null }) {
  const client = useQueryClient();
  const [isAsking, setAsking] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const check = async () => {
    setAsking(true);
    setError(null);
    try {
      await answer(api.POST("/api/v1/backends/upgrades/check"));
      for (const pause of LOOKS) {
        await new Promise((resolve) => setTimeout(resolve, pause));
        const { checked_at } = await answer(api.GET("/api/v1/backends/upgrades"));
        if (checked_at !== checkedAt) break;
      }
      await client.invalidateQueries({ queryKey: UPGRADES });
    } catch (refusal) {
      setError(refusal);
    } finally {
      setAsking(false);
    }
  };
  return (
    <>
      <Button isSmall icon="retry" isDisabled={isAsking} onPress={() => void check()}>
        {isAsking ? "Asking…" : "Ask now"}
      </Button>
      {error !== null && <Failure error={error} />}
    </>
  );
}

function columnsOf(onAct: ((choice: Choice) => void) | null): readonly Column<UpgradeRow>[] {
  const columns: Column<UpgradeRow>[] = [
    {
      key: "backend",
      title: "Backend",
      width: "minmax(100px, 1.2fr)",
      sort: byText((row) => row.backend),
      cell: (row) => <strong>{row.backend}</strong>,
    },
    {
      key: "state",
      title: "State",
      width: "104px",
      from: "tablet",
      sort: byText((row) => row.state),
      cell: (row) => <WordPill word={FRESHNESS[row.state]} />,
    },
    { key: "from", title: "From → to", width: "minmax(150px, 2fr)", cell: (row) => <FromTo row={row} /> },
    { key: "nodes", title: "Nodes", width: "minmax(100px, 1.6fr)", from: "tablet", cell: (row) => <Nodes row={row} /> },
    {
      key: "asked",
      title: "Registry asked",
      width: "110px",
      from: "wide",
      cell: (row) => (row.lookedAt === null ? "–" : <Age at={row.lookedAt} />),
    },
  ];
  if (onAct !== null) {
    columns.push({
      key: "act",
      title: "",
      width: "92px",
      isNumber: true,
      cell: (row) => <UpgradeButton row={row} onAct={onAct} />,
    });
  }
  return columns;
}

function FromTo({ row }: { row: UpgradeRow }) {
  return (
    <span className={styles.twoLines}>
      <span className={styles.fromTo}>
        <BuildText build={row.from} />
        <span aria-hidden="true">→</span>
        <span className="visually-hidden">to</span>
        <BuildText build={row.to} />
      </span>
      {row.reason !== "" && <span className={styles.quietLine}>{row.reason}</span>}
    </span>
  );
}

function BuildText({ build }: { build: Build }) {
  const digest = shortDigest(build.digest);
  if (build.version === "" && digest === "") return <span className={styles.quiet}>not said</span>;
  return (
    <span title={build.digest}>
      {build.version} {digest !== "" && <code>{digest}</code>}
    </span>
  );
}

function Nodes({ row }: { row: UpgradeRow }) {
  const nodes = row.nodes.map((node) => ({ name: node.node_name }));
  return (
    <span className={styles.twoLines} title={nodes.map((node) => node.name).join(", ")}>
      <span>{plural(nodes.length, "node")}</span>
      <span className={styles.quietLine}>{namesText(nodes, 3)}</span>
    </span>
  );
}

function UpgradeButton({ row, onAct }: { row: UpgradeRow; onAct: (choice: Choice) => void }) {
  if (row.state === "current") return null;
  const nodes = row.nodes.map((node) => node.node_id);
  return (
    <Button
      isSmall
      aria-label={`Upgrade ${row.backend} on ${plural(nodes.length, "node")}`}
      onPress={() => onAct(choiceOf("upgrade", row.backend, nodes))}
    >
      Upgrade…
    </Button>
  );
}
