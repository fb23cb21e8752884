/** The bar at the top: search, what is under way, how fresh all this is, and who is signed in. */

import { useState } from "react";
import {
  Button as AriaButton,
  Header,
  Menu,
  MenuItem,
  MenuSection,
  MenuTrigger,
  Popover,
  Separator,
} from "react-aria-components";

import { sentenceOf } from "../api/errors";
import { Icon } from "../parts/icons";
import { ActivityStrip } from "./activity-strip";
import { ConnectionDot } from "./connection-dot";
import { openPalette } from "./palette-state";
import { useAccess, useSession } from "./session";
import { chooseTheme, storedTheme, type Theme } from "./theme";
import styles from "./top-bar.module.css";

export function TopBar() {
  return (
    <header className={styles.bar}>
      <SearchButton />
      <ActivityStrip />
      <ConnectionDot />
      <PersonMenu />
    </header>
  );
}

function SearchButton() {
  return (
    <AriaButton className={styles.search} onPress={openPalette} aria-label="Search, or find an act">
      <Icon name="search" size={14} />
      <span className={styles.searchWord}>Search, or find an act</span>
      <kbd className={styles.key}>/</kbd>
    </AriaButton>
  );
}

const THEMES: readonly { id: Theme; label: string }[] = [
  { id: "system", label: "As this machine" },
  { id: "light", label: "Light" },
  { id: "dark", label: "Dark" },
];

function PersonMenu() {
  const session = useSession();
  const { signOut } = useAccess();
  const [theme, setTheme] = useState<Theme>(storedTheme());
  const pick = (next: Theme) => {
    chooseTheme(next);
    setTheme(next);
  };
  const [refusal, setRefusal] = useState("");
  const leave = () => signOut().catch((error: unknown) => setRefusal(`Not signed out: ${sentenceOf(error)}`));
  const name = session.user || session.key_name;
  return (
    <MenuTrigger>
      <AriaButton className={styles.person} aria-label={`${name}: theme and sign out`}>
        <Icon name="person" />
        <span className={styles.personName}>{name}</span>
      </AriaButton>
      <Popover className={styles.popover} placement="bottom end">
        <Menu className={styles.menu}>
          <MenuSection className={styles.section}>
            <Header className={styles.menuHead}>
              {refusal !== "" && <p className={styles.refusal}>{refusal}</p>}
              <strong>{name}</strong>
              <br />
              {session.scopes.join(", ")} · {session.fleet} · Corral {session.version}
            </Header>
          </MenuSection>
          <Separator className={styles.separator} />
          <MenuSection
            className={styles.section}
            selectionMode="single"
            selectedKeys={[theme]}
            onSelectionChange={(keys) => pick(([...keys][0] as Theme | undefined) ?? theme)}
            disallowEmptySelection
          >
            <Header className={styles.menuHead}>Theme</Header>
            {THEMES.map((choice) => (
              <MenuItem key={choice.id} id={choice.id} className={styles.item}>
                {choice.label}
                {choice.id === theme && <Icon name="check" size={14} />}
              </MenuItem>
            ))}
          </MenuSection>
          <Separator className={styles.separator} />
          <MenuItem id="docs" className={styles.item} href={`${window.location.origin}/docs`} target="_blank">
            API reference
          </MenuItem>
          <MenuItem id="sign-out" className={styles.item} onAction={() => void leave()}>
            Sign out
          </MenuItem>
        </Menu>
      </Popover>
    </MenuTrigger>
  );
}
