/** Asks before an act of which no plan exists, says what follows, and shows the server's refusal. */

import { type ReactNode, useState } from "react";

import { Button } from "./button";
import { Dialog } from "./dialog";
import { Failure } from "./states";

interface ConfirmDialogProps {
  readonly title: string;
  /** What follows from it. */
  readonly children: ReactNode;
  /** Names the act: "Revoke ci". */
  readonly label: string;
  readonly isDangerous?: boolean;
  readonly act: () => Promise<void>;
  readonly onClose: () => void;
}

export function ConfirmDialog({ title, children, label, isDangerous = false, act, onClose }: ConfirmDialogProps) {
  const [isActing, setActing] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const confirm = async () => {
    setActing(true);
    try {
      await act();
      onClose();
    } catch (refusal) {
      setError(refusal);
      setActing(false);
    }
  };
  return (
    <Dialog
      title={title}
      onClose={onClose}
      footer={
        <>
          <Button onPress={onClose}>Leave it</Button>
          <Button look={isDangerous ? "danger" : "primary"} isDisabled={isActing} onPress={() => void confirm()}>
            {isActing ? "Asking…" : label}
          </Button>
        </>
      }
    >
      {children}
      {error !== null && <Failure error={error} />}
    </Dialog>
  );
}
