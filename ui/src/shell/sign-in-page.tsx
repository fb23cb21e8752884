/** The first page of all: sign in, and where the key is. */

import { useEffect } from "react";

import { CodeBlock } from "../parts/code-block";
import styles from "./sign-in.module.css";
import { SignInForm } from "./sign-in-form";

export function SignInPage() {
  useEffect(() => {
    document.title = "Sign in · Corral";
  }, []);
  return (
    <main className={styles.page}>
      <div className={styles.card}>
        <h1 className={styles.title}>Sign in to Corral</h1>
        <SignInForm />
        <details className={styles.help}>
          <summary>Where is my key?</summary>
          <div className={styles.helpText}>
            <p>
              A fleet that you started with <code>corral up</code> or <code>make up</code> printed it when it was ready.
              It is also in the file <code>up.json</code> of its data directory, under <code>keys.admin</code>:
            </p>
            <CodeBlock text="grep admin ~/.local/share/corral/up.json" label="Command" />
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
