/** Makes a key, and shows it this once. */

import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { answer, api } from "../api/client";
import { Button } from "../parts/button";
import { CodeBlock } from "../parts/code-block";
import { Dialog } from "../parts/dialog";
import { Select, TextField } from "../parts/fields";
import { FieldRow, FormDialog, useSubmission } from "../parts/form-dialog";
import { Notice } from "../parts/states";
import { Moment } from "../parts/time";
import { useMay } from "../shell/session";
import { stateWord } from "../words.gen";
import styles from "./access.module.css";
import {
  type CreatedKey,
  type KeyDraft,
  keyAsk,
  keyCommand,
  LIFETIMES,
  NEW_KEY,
  SCOPES,
  scopesText,
  unconfirmedText,
} from "./key-draft";
import { KEYS, useUsers } from "./queries";

export function KeyForm({ onClose }: { onClose: () => void }) {
  const client = useQueryClient();
  const [draft, setDraft] = useState(NEW_KEY);
  const [made, setMade] = useState<CreatedKey | null>(null);
  const submission = useSubmission(async () => {
    setMade(await answer(api.POST("/api/v1/keys", { body: keyAsk(draft) })));
    await client.invalidateQueries({ queryKey: KEYS });
  });
  if (made !== null) return <MadeKey made={made} onClose={onClose} />;
  const set = (field: keyof KeyDraft) => (value: string) => setDraft((before) => ({ ...before, [field]: value }));
  return (
    <FormDialog
      title="New key"
      label="Make the key"
      submission={submission}
      fields={["name", "scopes", "expires_in", "models", "user"]}
      isReady={draft.name.trim() !== ""}
      onClose={onClose}
    >
      <TextField
        label="Name"
        value={draft.name}
        onChange={set("name")}
        error={submission.about("name")}
        hint="Who or what will use it; it is on the record of all that it does."
        autoFocus
      />
      <FieldRow>
        <Select
          label="Opens"
          choices={SCOPES.map((scope) => ({ id: scope, label: stateWord("role", scope).label }))}
          value={draft.scope}
          onChange={set("scope")}
        />
        <Select label="Expires" choices={LIFETIMES} value={draft.expires} onChange={set("expires")} />
        <Owner value={draft.user} onChange={set("user")} />
      </FieldRow>
      <p className={styles.quiet}>{stateWord("role", draft.scope).tooltip}</p>
      {draft.scope === "inference" && (
        <TextField
          label="Only these models"
          value={draft.models}
          onChange={set("models")}
          error={submission.about("models")}
          placeholder="all models"
          hint="Names or aliases, with blanks between them."
        />
      )}
      <CodeBlock label="Command" text={keyCommand(draft)} canWrap />
    </FormDialog>
  );
}

function Owner({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  const { data } = useUsers(useMay("users.manage"));
  const users = (data ?? []).map((user) => ({ id: user.name, label: user.name }));
  if (users.length === 0) return null;
  return (
    <Select
      label="Belongs to"
      choices={[{ id: "", label: "Nobody: it stays" }, ...users]}
      value={value}
      onChange={onChange}
    />
  );
}

function MadeKey({ made, onClose }: { made: CreatedKey; onClose: () => void }) {
  const unsure = unconfirmedText(made.unconfirmed_gateways, "may not know this key yet");
  const example = `curl ${window.location.origin}/v1/models -H "Authorization: Bearer $KEY"`;
  return (
    <Dialog
      title={`Key ${made.name}`}
      isBinding
      onClose={onClose}
      footer={
        <Button look="primary" onPress={onClose}>
          I have copied it
        </Button>
      }
    >
      <Notice tone="yellow">This is shown once: only its hash is stored.</Notice>
      <CodeBlock label="Key" text={made.key} canWrap />
      <p className={styles.quiet}>
        It opens {scopesText(made)}, and is valid until{" "}
        {made.expires_at === null ? "it is revoked" : <Moment at={made.expires_at} />}. With the key in the variable
        KEY:
      </p>
      <CodeBlock label="Example" text={example} canWrap />
      {unsure !== "" && <Notice tone="yellow">{unsure}</Notice>}
    </Dialog>
  );
}
