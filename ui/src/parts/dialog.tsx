/** A dialog: in front of the page, closed by Escape, focus stays inside. */

import type { ReactNode } from "react";
import { Dialog as AriaDialog, Heading, Modal, ModalOverlay } from "react-aria-components";

import { IconButton } from "./button";
import { classes } from "./classes";
import styles from "./dialog.module.css";

interface DialogProps {
  readonly title: string;
  readonly onClose: () => void;
  readonly children: ReactNode;
  readonly footer?: ReactNode;
  readonly isWide?: boolean;
  /** Only its buttons close it. */
  readonly isBinding?: boolean;
}

export function Dialog({ title, onClose, children, footer, isWide = false, isBinding = false }: DialogProps) {
  return (
    <ModalOverlay
      className={styles.shade}
      isOpen
      onOpenChange={(isOpen) => !isOpen && onClose()}
      isDismissable={!isBinding}
      isKeyboardDismissDisabled={isBinding}
    >
      <Modal className={classes(styles.modal, isWide && styles.wide)}>
        <AriaDialog className={styles.dialog}>
          <header className={styles.head}>
            <Heading slot="title" className={styles.title}>
              {title}
            </Heading>
            {!isBinding && <IconButton icon="close" label="Close" onPress={onClose} />}
          </header>
          <div className={styles.body}>{children}</div>
          {footer !== undefined && <footer className={styles.footer}>{footer}</footer>}
        </AriaDialog>
      </Modal>
    </ModalOverlay>
  );
}

/** A dialog at the side: the page behind stays in sight and usable. */
export function SidePanel({ title, onClose, children }: { title: string; onClose: () => void; children: ReactNode }) {
  return (
    <aside className={styles.panel} aria-label={title}>
      <header className={styles.head}>
        <h2 className={styles.title}>{title}</h2>
        <IconButton icon="close" label="Close panel" onPress={onClose} />
      </header>
      <div className={styles.panelBody}>{children}</div>
    </aside>
  );
}
