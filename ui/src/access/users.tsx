/** Users: their roles, whether they can sign in, and their keys. */

import { useQueryClient } from "@tanstack/react-query";
import { useMemo, useState } from "react";

import { answer, api, type Schema } from "../api/client";
import { Button } from "../parts/button";
import { ConfirmDialog } from "../parts/confirm-dialog";
import { plural } from "../parts/format";
import { ActMenu } from "../parts/menu";
import { Section } from "../parts/page";
import { Empty, Failure, Loading, Notice } from "../parts/states";
import { StatusPill } from "../parts/status-pill";
import { byNumber, byText, type Column, Table } from "../parts/table";
import { Age } from "../parts/time";
import { stateWord } from "../words.gen";
import styles from "./access.module.css";
import { unconfirmedText } from "./key-draft";
import { KEYS, USERS, useUsers } from "./queries";
import { type UserEdit, UserForm } from "./user-form";

type User = Schema<"UserView">;
type Opened =
  | { readonly kind: "form"; readonly edit: UserEdit }
  | { readonly kind: "disable" | "enable" | "delete"; readonly user: User };

export function Users() {
  const { data, error, refetch } = useUsers();
  const [opened, setOpened] = useState<Opened | null>(null);
  const [note, setNote] = useState("");
  const columns = useMemo(() => columnsOf(setOpened), []);
  if (error !== null) return <Failure error={error} onRetry={() => void refetch()} />;
  if (data === undefined) return <Loading />;
  const close = () => setOpened(null);
  return (
    <>
      <div className={styles.filters}>
        <p className={styles.quiet}>People sign in with name and password; what they may do is their role.</p>
        <span className={styles.pushed}>
          <Button look="primary" icon="plus" onPress={() => setOpened({ kind: "form", edit: { kind: "new" } })}>
            New user
          </Button>
        </span>
      </div>
      {note !== "" && <Notice tone="yellow">{note}</Notice>}
      <Section isBare>
        {data.length === 0 ? (
          <Empty command="corral users create NAME --role operator">
            There is no user: everybody signs in with a key.
          </Empty>
        ) : (
          <Table label="Users" rows={data} columns={columns} rowKey={(user) => user.name} rowHeight={40} />
        )}
      </Section>
      {opened?.kind === "form" && <UserForm edit={opened.edit} onNote={setNote} onClose={close} />}
      {opened !== null && opened.kind !== "form" && (
        <Change kind={opened.kind} user={opened.user} onNote={setNote} onClose={close} />
      )}
    </>
  );
}

function columnsOf(open: (opened: Opened) => void): readonly Column<User>[] {
  return [
    {
      key: "name",
      title: "Name",
      width: "minmax(100px, 1.4fr)",
      sort: byText((user) => user.name),
      cell: (user) => <strong>{user.name}</strong>,
    },
    {
      key: "role",
      title: "Role",
      width: "minmax(80px, 1fr)",
      sort: byText((user) => user.role),
      cell: (user) => <span title={stateWord("role", user.role).tooltip}>{stateWord("role", user.role).label}</span>,
    },
    {
      key: "state",
      title: "State",
      width: "100px",
      cell: (user) => <StatusPill subject="user" state={user.is_disabled ? "disabled" : "active"} />,
    },
    {
      key: "password",
      title: "Signs in",
      width: "minmax(90px, 1fr)",
      from: "tablet",
      cell: (user) => (user.has_password ? "with password" : "with keys only"),
    },
    {
      key: "keys",
      title: "Keys",
      width: "64px",
      from: "tablet",
      isNumber: true,
      sort: byNumber((user) => user.active_keys),
      cell: (user) => user.active_keys,
    },
    {
      key: "added",
      title: "Added",
      width: "minmax(120px, 1fr)",
      from: "wide",
      cell: (user) => (
        <span className={styles.quiet}>
          <Age at={user.created_at} /> by {user.created_by}
        </span>
      ),
    },
    { key: "acts", title: "", width: "48px", isNumber: true, cell: (user) => <UserActs user={user} open={open} /> },
  ];
}

function UserActs({ user, open }: { user: User; open: (opened: Opened) => void }) {
  const turn = user.is_disabled ? "enable" : "disable";
  return (
    <ActMenu
      label={`Acts on ${user.name}`}
      acts={[
        { id: "role", label: "Change the role…", onAct: () => open({ kind: "form", edit: { kind: "role", user } }) },
        {
          id: "password",
          label: "Set a password…",
          onAct: () => open({ kind: "form", edit: { kind: "password", user } }),
        },
        { id: turn, label: user.is_disabled ? "Enable…" : "Disable…", onAct: () => open({ kind: turn, user }) },
        { id: "delete", label: "Delete…", isDangerous: true, onAct: () => open({ kind: "delete", user }) },
      ]}
    />
  );
}

const WORDS = {
  disable: {
    label: "Disable",
    text: "They cannot sign in any more, their sessions end, and their keys are revoked, for good.",
  },
  enable: { label: "Enable", text: "They can sign in again. Keys that were revoked stay so." },
  delete: { label: "Delete", text: "The user is gone, their sessions end, and all their keys are revoked." },
} as const;

interface ChangeProps {
  readonly kind: keyof typeof WORDS;
  readonly user: User;
  readonly onNote: (note: string) => void;
  readonly onClose: () => void;
}

function Change({ kind, user, onNote, onClose }: ChangeProps) {
  const client = useQueryClient();
  const params = { path: { name: user.name } };
  const act = async () => {
    const changed =
      kind === "delete"
        ? await answer(api.DELETE("/api/v1/users/{name}", { params }))
        : await answer(
            api.PATCH("/api/v1/users/{name}", {
              params,
              body: { role: null, password: null, disabled: kind === "disable" },
            }),
          );
    onNote(unconfirmedText(changed.unconfirmed_gateways, "may still take their keys"));
    await client.invalidateQueries({ queryKey: USERS });
    await client.invalidateQueries({ queryKey: KEYS });
  };
  const title = `${WORDS[kind].label} ${user.name}`;
  return (
    <ConfirmDialog title={title} label={title} isDangerous={kind !== "enable"} act={act} onClose={onClose}>
      <p>{WORDS[kind].text}</p>
      {kind !== "enable" && user.active_keys > 0 && <p>{plural(user.active_keys, "key")} would end.</p>}
    </ConfirmDialog>
  );
}
