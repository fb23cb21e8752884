/** Adds a user, gives another role, or sets a password. */

import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { answer, api, type Schema } from "../api/client";
import { Select, TextField } from "../parts/fields";
import { FormDialog, useSubmission } from "../parts/form-dialog";
import { stateWord } from "../words.gen";
import styles from "./access.module.css";
import { unconfirmedText } from "./key-draft";
import { KEYS, USERS } from "./queries";

type User = Schema<"UserView">;
export type UserEdit =
  | { readonly kind: "new" }
  | { readonly kind: "role"; readonly user: User }
  | { readonly kind: "password"; readonly user: User };

const ROLES = ["viewer", "operator", "inference", "admin"] as const;

interface UserFormProps {
  readonly edit: UserEdit;
  readonly onNote: (note: string) => void;
  readonly onClose: () => void;
}

export function UserForm({ edit, onNote, onClose }: UserFormProps) {
  const client = useQueryClient();
  const [name, setName] = useState(edit.kind === "new" ? "" : edit.user.name);
  const [role, setRole] = useState(edit.kind === "role" ? edit.user.role : "viewer");
  const [password, setPassword] = useState("");
  const submission = useSubmission(async () => {
    onNote(await save(edit, { name: name.trim(), role, password }));
    await client.invalidateQueries({ queryKey: USERS });
    await client.invalidateQueries({ queryKey: KEYS });
    onClose();
  });
  const isReady = edit.kind === "new" ? name.trim() !== "" : edit.kind === "role" || password !== "";
  return (
    <FormDialog
      title={titleOf(edit)}
      label={labelOf(edit)}
      submission={submission}
      fields={["name", "role", "password"]}
      isReady={isReady}
      onClose={onClose}
    >
      {edit.kind === "new" && (
        <TextField
          label="Name"
          value={name}
          onChange={setName}
          error={submission.about("name")}
          autoComplete="off"
          autoFocus
        />
      )}
      {edit.kind !== "password" && (
        <>
          <Select
            label="Role"
            choices={ROLES.map((each) => ({ id: each, label: stateWord("role", each).label }))}
            value={role}
            onChange={setRole}
          />
          <p className={styles.quiet}>{stateWord("role", role).tooltip}</p>
        </>
      )}
      {edit.kind === "role" && <p className={styles.quiet}>Keys that the new role does not cover are revoked.</p>}
      {edit.kind !== "role" && (
        <TextField
          label="Password"
          type="password"
          value={password}
          onChange={setPassword}
          error={submission.about("password")}
          autoComplete="new-password"
          hint={
            edit.kind === "new"
              ? "Empty: the user has keys only, and cannot sign in."
              : "Their earlier logins and sessions end."
          }
        />
      )}
    </FormDialog>
  );
}

async function save(edit: UserEdit, typed: { name: string; role: string; password: string }): Promise<string> {
  if (edit.kind === "new") {
    await answer(api.POST("/api/v1/users", { body: typed }));
    return "";
  }
  const unchanged = { role: null, password: null, disabled: null };
  const body = edit.kind === "role" ? { ...unchanged, role: typed.role } : { ...unchanged, password: typed.password };
  const changed = await answer(api.PATCH("/api/v1/users/{name}", { params: { path: { name: edit.user.name } }, body }));
  return unconfirmedText(changed.unconfirmed_gateways, "may still take their keys");
}

function titleOf(edit: UserEdit): string {
  if (edit.kind === "new") return "New user";
  return edit.kind === "role" ? `Role of ${edit.user.name}` : `Password of ${edit.user.name}`;
}

function labelOf(edit: UserEdit): string {
  if (edit.kind === "new") return "Add the user";
  return edit.kind === "role" ? "Change the role" : "Set the password";
}
