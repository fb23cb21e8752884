/** The first page of all: sign in, and where the key is. */

import { useEffect } from "react";

import { CodeBlock } from "../parts/code-block";
import { Mark } from "./mark";
import styles from "./sign-in.module.css";
import { SignInForm } from "./sign-in-form";

export function SignInPage() {
  useEffect(() => {
    document.title = "Sign in · Corral";
  }, []);
  return (
    <main className={styles.page}>
      <div className={styles.card}>
        <h1 className={styles.title}>
          <Mark /> Sign in to Corral
        </h1>
        <SignInForm />
        <details className={styles.help}>
          <summary>Where is my key?</summary>
          <div className={styles.helpText}>
            <p>
              In a file that only the user of the frontend can read, under <code>admin</code>. When Corral started for
              the first time, it said where. Usually this shows it:
            </p>
            <CodeBlock text="cat ~/.local/share/corral/credentials.json" label="Command" />
            <p>Somebody else's fleet: ask its administrator for a key, or for a name and a password.</p>
          </div>
        </details>
        <details className={styles.help}>
          <summary>I lost all keys</summary>
          <div className={styles.helpText}>
            <p>
              Whoever may read the database of a frontend may make a new administrator key, on its machine. The lost one
              is revoked.
            </p>
            <CodeBlock text="corral keys reset-admin" label="Command" />
          </div>
        </details>
      </div>
    </main>
  );
}
