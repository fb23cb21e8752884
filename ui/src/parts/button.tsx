/** Buttons: one primary act at most on a page, the rest plain; red only for what deletes or ends something. */

import type { ReactNode } from "react";
import { Button as AriaButton, type ButtonProps as AriaButtonProps, Link as AriaLink } from "react-aria-components";

import styles from "./button.module.css";
import { classes } from "./classes";
import { Icon, type IconName } from "./icons";

export type ButtonLook = "plain" | "primary" | "danger" | "quiet";

interface ButtonProps extends Omit<AriaButtonProps, "className" | "style" | "children"> {
  readonly look?: ButtonLook;
  readonly icon?: IconName;
  readonly isSmall?: boolean;
  readonly children: ReactNode;
}

export function Button({ look = "plain", icon, isSmall = false, children, ...rest }: ButtonProps) {
  return (
    <AriaButton {...rest} className={classes(styles.button, styles[look], isSmall && styles.small)}>
      {icon !== undefined && <Icon name={icon} size={14} />}
      {children}
    </AriaButton>
  );
}

interface IconButtonProps extends Omit<AriaButtonProps, "className" | "style" | "children"> {
  readonly icon: IconName;
  /** What it does, for those who do not see it; shown as a hint to the others. */
  readonly label: string;
}

export function IconButton({ icon, label, ...rest }: IconButtonProps) {
  return (
    <AriaButton {...rest} aria-label={label} className={classes(styles.button, styles.quiet, styles.icon)}>
      <span title={label} className={styles.hint}>
        <Icon name={icon} />
      </span>
    </AriaButton>
  );
}

/** A link that looks like a button: for acts that begin on another page. */
export function LinkButton({
  href,
  look = "plain",
  icon,
  isSmall = false,
  children,
}: {
  href: string;
  look?: ButtonLook;
  icon?: IconName;
  isSmall?: boolean;
  children: ReactNode;
}) {
  return (
    <AriaLink href={href} className={classes(styles.button, styles[look], isSmall && styles.small)}>
      {icon !== undefined && <Icon name={icon} size={14} />}
      {children}
    </AriaLink>
  );
}
