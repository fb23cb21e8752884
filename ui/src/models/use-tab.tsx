/** How programs ask this model: code to copy, with this fleet's address. */

import { useState } from "react";
import { LinkButton } from "../parts/button";
import { CodeBlock, CopyText } from "../parts/code-block";
import { Section } from "../parts/page";
import { Segments } from "../parts/segments";
import { useMay } from "../shell/session";
import { useCapabilities } from "./queries";
import { KEY_VARIABLE, LANGUAGES, type Language, snippet, USE_NAMES, type Use, usesOf } from "./snippets";
import styles from "./use-tab.module.css";

export function UseTab({ name }: { name: string }) {
  const flags = useCapabilities().data?.find((model) => model.id === name)?.capabilities ?? [];
  const uses = usesOf(flags);
  const [wanted, setUse] = useState<Use | null>(null);
  const [language, setLanguage] = useState<Language>("curl");
  const use = wanted !== null && uses.includes(wanted) ? wanted : (uses[0] ?? "chat");
  return (
    <Section title="Use it from your program">
      <div className={styles.use}>
        <div className={styles.choices}>
          {uses.length > 1 && (
            <Segments
              label="What for"
              segments={uses.map((id) => ({ id, label: USE_NAMES[id] }))}
              value={use}
              onChange={setUse}
            />
          )}
          <Segments
            label="Language"
            segments={LANGUAGES.map(({ language: id, label }) => ({ id, label }))}
            value={language}
            onChange={setLanguage}
          />
        </div>
        <CodeBlock label="Code" text={snippet({ origin: window.location.origin, model: name, use }, language)} />
        <KeyHint />
      </div>
    </Section>
  );
}

function KeyHint() {
  const mayMake = useMay("keys.manage");
  return (
    <div className={styles.hint}>
      <p>
        Any OpenAI client works with this base URL: <CopyText text={`${window.location.origin}/v1`} />
      </p>
      <p>
        The variable <code>{KEY_VARIABLE}</code> holds a key of scope inference.
      </p>
      {mayMake ? (
        <p className={styles.acts}>
          <LinkButton href="/access" isSmall>
            Make a key
          </LinkButton>
          <span>
            or <CopyText text={`export ${KEY_VARIABLE}=$(corral keys create my-app --scope inference)`} />
          </span>
        </p>
      ) : (
        <p>An administrator can make one; the key that you signed in with works too, if it is of scope inference.</p>
      )}
    </div>
  );
}
