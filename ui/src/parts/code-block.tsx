/** Text to take away: a block or a word with a button that copies it. */

import { useEffect, useState } from "react";
import { Button as AriaButton } from "react-aria-components";

import { classes } from "./classes";
import styles from "./code-block.module.css";
import { Icon } from "./icons";

const SHOWN_MILLISECONDS = 1500;

export function CodeBlock({
  text,
  label = "Command",
  canWrap = false,
}: {
  text: string;
  label?: string;
  canWrap?: boolean;
}) {
  return (
    <div className={styles.block}>
      {/* biome-ignore lint/a11y/useSemanticElements: preformatted text that scrolls */}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
      <pre className={classes(styles.pre, canWrap && styles.wrap)} tabIndex={0} role="region" aria-label={label}>
        {canWrap ? <WholeWords text={text} /> : text}
      </pre>
      <CopyButton text={text} label={`Copy ${label.toLowerCase()}`} />
    </div>
  );
}

/** Words that stay whole where a line has room for them: browsers also break a line behind the dashes of a flag. */
export function WholeWords({ text }: { text: string }) {
  return (
    <span>
      {text.split(/(\s+)/).map((word, place) =>
        place % 2 === 1 ? (
          word
        ) : (
          // biome-ignore lint/suspicious/noArrayIndexKey: words have no identity
          <span key={place} className={styles.word}>
            {word}
          </span>
        ),
      )}
    </span>
  );
}

/** A short text in line, copied when pressed. */
export function CopyText({ text }: { text: string }) {
  return (
    <span className={styles.inline}>
      <code>
        <WholeWords text={text} />
      </code>
      <CopyButton text={text} label={`Copy ${text}`} />
    </span>
  );
}

export function CopyButton({ text, label }: { text: string; label: string }) {
  const [isCopied, setCopied] = useState(false);
  useEffect(() => {
    if (!isCopied) return;
    const timer = setTimeout(() => setCopied(false), SHOWN_MILLISECONDS);
    return () => clearTimeout(timer);
  }, [isCopied]);
  return (
    <AriaButton
      className={styles.copy}
      aria-label={isCopied ? "Copied" : label}
      onPress={() => void copyText(text).then(() => setCopied(true))}
    >
      <Icon name={isCopied ? "check" : "copy"} size={14} />
    </AriaButton>
  );
}

/** The clipboard belongs to safe origins only; over plain HTTP a selection does. */
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard !== undefined) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "visually-hidden";
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}
