/** API keys: what each opens, until when, whose it is; made here and shown once. */

import { useQueryClient } from "@tanstack/react-query";
import { useMemo, useState } from "react";

import { answer, api } from "../api/client";
import { Button } from "../parts/button";
import { ConfirmDialog } from "../parts/confirm-dialog";
import { Checkbox, SearchField } from "../parts/fields";
import { useFilters } from "../parts/filters";
import { Section } from "../parts/page";
import { Empty, Failure, Loading, Notice } from "../parts/states";
import { StatusPill } from "../parts/status-pill";
import { byText, type Column, Table } from "../parts/table";
import { Age, Moment } from "../parts/time";
import styles from "./access.module.css";
import { type KeyView, scopesText, shownKeys, unconfirmedText } from "./key-draft";
import { KeyForm } from "./key-form";
import { KEYS, useKeys } from "./queries";

export function Keys() {
  const { data, error, refetch } = useKeys();
  const filters = useFilters();
  const [isMaking, setMaking] = useState(false);
  const [revoked, setRevoked] = useState<KeyView | null>(null);
  const [note, setNote] = useState("");
  const columns = useMemo(() => columnsOf(setRevoked), []);
  if (error !== null) return <Failure error={error} onRetry={() => void refetch()} />;
  if (data === undefined) return <Loading />;
  const isWhole = filters.get("all") === "yes";
  const word = filters.get("q").toLowerCase();
  const keys = shownKeys(data, isWhole).filter((key) =>
    `${key.name} ${key.user} ${scopesText(key)}`.toLowerCase().includes(word),
  );
  return (
    <>
      <search className={styles.filters}>
        <SearchField label="Find keys" value={filters.get("q")} onChange={(text) => filters.set("q", text)} />
        <Checkbox isSelected={isWhole} onChange={(isAll) => filters.set("all", isAll ? "yes" : "")}>
          Also ended ones
        </Checkbox>
        <span className={styles.pushed}>
          <Button look="primary" icon="plus" onPress={() => setMaking(true)}>
            New key
          </Button>
        </span>
      </search>
      {note !== "" && <Notice tone="yellow">{note}</Notice>}
      <Section isBare>
        {keys.length === 0 ? (
          <Empty command="corral keys create NAME">No key is found.</Empty>
        ) : (
          <Table label="API keys" rows={keys} columns={columns} rowKey={(key) => key.id} rowHeight={44} />
        )}
      </Section>
      {isMaking && <KeyForm onClose={() => setMaking(false)} />}
      {revoked !== null && <Revoke revoked={revoked} onNote={setNote} onClose={() => setRevoked(null)} />}
    </>
  );
}

function columnsOf(revoke: (key: KeyView) => void): readonly Column<KeyView>[] {
  return [
    {
      key: "name",
      title: "Name",
      width: "minmax(100px, 1.4fr)",
      sort: byText((key) => key.name),
      cell: (key) => <Name view={key} />,
    },
    {
      key: "scopes",
      title: "Opens",
      width: "minmax(90px, 1.4fr)",
      sort: byText(scopesText),
      cell: (key) => <span title={scopesText(key)}>{scopesText(key)}</span>,
    },
    {
      key: "state",
      title: "State",
      width: "96px",
      from: "tablet",
      sort: byText((key) => key.state),
      cell: (key) => <StatusPill subject="key" state={key.state} />,
    },
    {
      key: "expires",
      title: "Expires",
      width: "minmax(96px, 1fr)",
      from: "tablet",
      sort: byText((key) => key.expires_at ?? "~"),
      cell: (key) => (key.expires_at === null ? "never" : <Moment at={key.expires_at} />),
    },
    {
      key: "used",
      title: "Last used",
      width: "minmax(96px, 1fr)",
      from: "tablet",
      sort: byText((key) => key.last_used_at ?? ""),
      cell: (key) => (key.last_used_at === null ? "never" : <Age at={key.last_used_at} />),
    },
    {
      key: "made",
      title: "Made",
      width: "minmax(130px, 1fr)",
      from: "wide",
      sort: byText((key) => key.created_at),
      cell: (key) => <Made view={key} />,
    },
    { key: "id", title: "Id", width: "120px", from: "wide", cell: (key) => <code>{key.id}</code> },
    {
      key: "act",
      title: "",
      width: "84px",
      isNumber: true,
      cell: (key) => <RevokeButton view={key} onRevoke={revoke} />,
    },
  ];
}

function Name({ view }: { view: KeyView }) {
  return (
    <span className={styles.twoLines}>
      <strong>{view.name}</strong>
      {view.user !== "" && <span className={styles.quietLine}>of {view.user}</span>}
      {view.session !== "" && <span className={styles.quietLine}>of a session of this page</span>}
    </span>
  );
}

function Made({ view }: { view: KeyView }) {
  return (
    <span className={styles.quiet}>
      <Age at={view.created_at} /> by {view.created_by}
    </span>
  );
}

function RevokeButton({ view, onRevoke }: { view: KeyView; onRevoke: (key: KeyView) => void }) {
  if (view.state !== "active") return null;
  return (
    <Button isSmall aria-label={`Revoke ${view.name}`} onPress={() => onRevoke(view)}>
      Revoke…
    </Button>
  );
}

function Revoke({
  revoked,
  onNote,
  onClose,
}: {
  revoked: KeyView;
  onNote: (note: string) => void;
  onClose: () => void;
}) {
  const client = useQueryClient();
  const act = async () => {
    const unsure = await answer(api.DELETE("/api/v1/keys/{id}", { params: { path: { id: revoked.id } } }));
    onNote(unconfirmedText(unsure?.unconfirmed_gateways ?? [], "may still take this key"));
    await client.invalidateQueries({ queryKey: KEYS });
  };
  return (
    <ConfirmDialog
      title={`Revoke ${revoked.name}`}
      label={`Revoke ${revoked.name}`}
      isDangerous
      act={act}
      onClose={onClose}
    >
      <p>
        Whoever uses this key ({scopesText(revoked)}) is refused by every gateway within two seconds, for good. Sessions
        that were opened with it end too.
      </p>
    </ConfirmDialog>
  );
}
