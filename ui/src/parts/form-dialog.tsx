/** A dialog with fields and one act. The server's refusal stands at its field, or below where it names none. */

import { type FormEvent, type ReactNode, useState } from "react";

import { ApiError } from "../api/errors";
import { Button } from "./button";
import { Dialog } from "./dialog";
import styles from "./form-dialog.module.css";
import { Failure } from "./states";

export interface Submission {
  readonly isActing: boolean;
  readonly error: unknown;
  /** The server's sentence about this field; empty when it said nothing about it. */
  readonly about: (field: string) => string;
  readonly submit: () => void;
}

/** Runs an act, and keeps its refusal until the next try. */
export function useSubmission(act: () => Promise<void>): Submission {
  const [isActing, setActing] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const submit = async () => {
    setActing(true);
    setError(null);
    try {
      await act();
    } catch (refusal) {
      setError(refusal);
    } finally {
      setActing(false);
    }
  };
  return {
    isActing,
    error,
    about: (field) => (error instanceof ApiError && error.field === field ? error.message : ""),
    submit: () => void submit(),
  };
}

interface FormDialogProps {
  readonly title: string;
  readonly label: string;
  readonly submission: Submission;
  /** Names of fields in this form: refusals about others are shown below it. */
  readonly fields: readonly string[];
  readonly isReady: boolean;
  readonly isWide?: boolean;
  readonly children: ReactNode;
  readonly onClose: () => void;
}

export function FormDialog({
  title,
  label,
  submission,
  fields,
  isReady,
  isWide = false,
  children,
  onClose,
}: FormDialogProps) {
  const { error, isActing } = submission;
  const isElsewhere = error !== null && !(error instanceof ApiError && fields.includes(error.field));
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (isReady && !isActing) submission.submit();
  };
  return (
    <Dialog
      title={title}
      onClose={onClose}
      isWide={isWide}
      footer={
        <>
          <Button onPress={onClose}>Close</Button>
          <Button look="primary" isDisabled={!isReady || isActing} onPress={submission.submit}>
            {isActing ? "Asking…" : label}
          </Button>
        </>
      }
    >
      <form className={styles.form} onSubmit={submit} noValidate autoComplete="off">
        {children}
        {/* Enter in any field sends the form; the button that people see is in the footer. */}
        <button
          type="submit"
          className="visually-hidden"
          tabIndex={-1}
          aria-hidden="true"
          disabled={!isReady || isActing}
        />
      </form>
      {isElsewhere && <Failure error={error} />}
    </Dialog>
  );
}

/** Fields side by side, below each other where it is narrow. */
export function FieldRow({ children }: { children: ReactNode }) {
  return <div className={styles.row}>{children}</div>;
}
