/** Acts that are needed less often, behind one button. */

import { Button as AriaButton, Menu, MenuItem, MenuTrigger, Popover } from "react-aria-components";

import button from "./button.module.css";
import { classes } from "./classes";
import { Icon } from "./icons";
import styles from "./menu.module.css";

export interface MenuAct {
  readonly id: string;
  readonly label: string;
  /** It deletes or ends something. */
  readonly isDangerous?: boolean;
  readonly onAct: () => void;
}

export function ActMenu({ label, acts }: { label: string; acts: readonly MenuAct[] }) {
  if (acts.length === 0) return null;
  return (
    <MenuTrigger>
      <AriaButton className={classes(button.button, button.plain, button.icon)} aria-label={label}>
        <Icon name="more" />
      </AriaButton>
      <Popover className={styles.popover} placement="bottom end">
        <Menu className={styles.menu} items={acts}>
          {(act) => (
            <MenuItem
              className={classes(styles.item, act.isDangerous && styles.danger)}
              onAction={act.onAct}
              textValue={act.label}
            >
              {act.label}
            </MenuItem>
          )}
        </Menu>
      </Popover>
    </MenuTrigger>
  );
}
