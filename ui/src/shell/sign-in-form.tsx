/** The form by which people sign in: a key, or a name and a password. */

import { type FormEvent, useState } from "react";

import { ApiError, sentenceOf } from "../api/errors";
import { Button } from "../parts/button";
import { TextField } from "../parts/fields";
import { type Credentials, useAccess } from "./session";
import styles from "./sign-in.module.css";

type Way = "key" | "password";

export function SignInForm({ label = "Sign in" }: { label?: string }) {
  const { signIn } = useAccess();
  const [way, setWay] = useState<Way>("key");
  const [key, setKey] = useState("");
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const [error, setError] = useState("");
  const [isBusy, setBusy] = useState(false);

  const credentials: Credentials = way === "key" ? { key: key.trim() } : { name: name.trim(), password };
  const isComplete = way === "key" ? key.trim() !== "" : name.trim() !== "" && password !== "";

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    if (!isComplete || isBusy) return;
    setBusy(true);
    setError("");
    try {
      await signIn(credentials);
    } catch (refusal) {
      setError(refusalText(refusal, way));
      setBusy(false);
    }
  };

  return (
    <form className={styles.form} onSubmit={(event) => void submit(event)}>
      {way === "key" ? (
        <TextField
          label="Key"
          type="password"
          autoComplete="current-password"
          value={key}
          onChange={setKey}
          autoFocus
        />
      ) : (
        <>
          <TextField label="Name" autoComplete="username" value={name} onChange={setName} autoFocus />
          <TextField
            label="Password"
            type="password"
            autoComplete="current-password"
            value={password}
            onChange={setPassword}
          />
        </>
      )}
      {error !== "" && (
        <p className={styles.error} role="alert">
          <span aria-hidden="true">✕ </span>
          {error}
        </p>
      )}
      <div className={styles.buttons}>
        <Button type="submit" look="primary" isDisabled={!isComplete || isBusy}>
          {isBusy ? "Signing in…" : label}
        </Button>
        <Button look="quiet" onPress={() => setWay(way === "key" ? "password" : "key")}>
          {way === "key" ? "Use a name and a password" : "Use a key"}
        </Button>
      </div>
    </form>
  );
}

function refusalText(refusal: unknown, way: Way): string {
  if (refusal instanceof ApiError && refusal.status === 401) {
    return way === "key" ? "This key is not accepted." : "This name and password are not accepted.";
  }
  return sentenceOf(refusal);
}
