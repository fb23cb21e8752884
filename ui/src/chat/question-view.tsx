/** What somebody asked; it can be asked again in other words. */

import { useState } from "react";

import { Button } from "../parts/button";
import { CopyButton } from "../parts/code-block";
import { TextField } from "../parts/fields";
import styles from "./exchanges.module.css";

export function QuestionView({ question, onEdit }: { question: string; onEdit: (question: string) => void }) {
  const [draft, setDraft] = useState<string | null>(null);
  if (draft !== null) {
    return (
      <div className={styles.editing}>
        <TextField
          label="Ask it in other words"
          lines={3}
          value={draft}
          onChange={setDraft}
          autoFocus
          hint="What came after it is left behind."
        />
        <div className={styles.acts}>
          <Button isSmall onPress={() => setDraft(null)}>
            Leave it
          </Button>
          <Button
            isSmall
            look="primary"
            isDisabled={draft.trim() === ""}
            onPress={() => {
              setDraft(null);
              onEdit(draft);
            }}
          >
            Ask
          </Button>
        </div>
      </div>
    );
  }
  return (
    <div className={styles.asked}>
      <span className="visually-hidden">You asked:</span>
      <div className={styles.question}>{question}</div>
      <div className={styles.acts}>
        <Button isSmall look="quiet" onPress={() => setDraft(question)}>
          Edit
        </Button>
        <CopyButton text={question} label="Copy the question" />
      </div>
    </div>
  );
}
