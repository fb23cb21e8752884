/** Search over everything that has an address, and every act that can be begun from anywhere. */

import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import {
  Dialog as AriaDialog,
  Autocomplete,
  Header,
  Input,
  ListBox,
  ListBoxItem,
  ListBoxSection,
  Modal,
  ModalOverlay,
  SearchField,
} from "react-aria-components";
import { useLocation } from "wouter";

import { useTopic } from "../live/live";
import { Icon } from "../parts/icons";
import styles from "./palette.module.css";
import { backendNames, modelNames } from "./palette-lists";
import { actsOn, type Find, type Found, find, pagesAndActs } from "./palette-search";
import { openOverlay } from "./palette-state";
import { useSession } from "./session";

const close = () => openOverlay("none");

/** Not loaded on demand: people type on while it opens. */
export function Palette() {
  const [text, setText] = useState("");
  const [, navigate] = useLocation();
  const groups = find(usePlaces(), text);
  const open = (href: string) => {
    close();
    navigate(href);
  };
  return (
    <ModalOverlay className={styles.shade} isOpen isDismissable onOpenChange={(isOpen) => !isOpen && close()}>
      <Modal className={styles.modal}>
        <AriaDialog aria-label="Search" className={styles.dialog}>
          <Autocomplete inputValue={text} onInputChange={setText} filter={() => true}>
            <SearchField aria-label="Search" autoFocus className={styles.field}>
              <Icon name="search" />
              <Input className={styles.input} placeholder="A node, a model, a backend, an operation, an act" />
            </SearchField>
            <ListBox
              aria-label="What was found"
              className={styles.list}
              selectionMode="none"
              onAction={(key) => open(String(key))}
              renderEmptyState={() => <p className={styles.none}>Nothing has that in its name.</p>}
            >
              {groups.map((group) => (
                <ListBoxSection key={group.title} className={styles.section}>
                  <Header className={styles.head}>{group.title}</Header>
                  {group.found.map((place) => (
                    <Entry key={place.href} place={place} />
                  ))}
                </ListBoxSection>
              ))}
            </ListBox>
          </Autocomplete>
        </AriaDialog>
      </Modal>
    </ModalOverlay>
  );
}

function Entry({ place }: { place: Found }) {
  return (
    <ListBoxItem id={place.href} textValue={place.name} className={styles.item}>
      <span className={styles.name}>{place.name}</span>
      <span className={styles.note}>{place.note}</span>
    </ListBoxItem>
  );
}

/** Everything that can be found. Nodes and operations are live; the names of models and backends are asked for once. */
function usePlaces(): readonly Find[] {
  const { permissions } = useSession();
  const nodes = useTopic("nodes").items;
  const operations = useTopic("operations").items;
  const may = (permission: string) => permissions.includes(permission);
  const models = useQuery({ queryKey: ["palette", "models"], queryFn: modelNames, enabled: may("models.read") });
  const backends = useQuery({
    queryKey: ["palette", "backends"],
    queryFn: backendNames,
    enabled: may("backends.read"),
  });
  return useMemo(
    () => [
      ...pagesAndActs(permissions),
      ...[...nodes.values()].map((node) => ({
        group: "Nodes",
        name: node.name,
        note: node.status,
        href: `/nodes/${encodeURIComponent(node.id)}`,
      })),
      ...(models.data ?? []).map((name) => ({
        group: "Models",
        name,
        note: "",
        href: `/models/${encodeURIComponent(name)}`,
      })),
      ...(backends.data ?? []).map((name) => ({
        group: "Backends",
        name,
        note: "",
        href: `/backends/${encodeURIComponent(name)}`,
      })),
      ...[...operations.values()].map((operation) => ({
        group: "Operations",
        name: `${operation.verb} ${operation.backend}`,
        note: operation.state,
        href: `/activity/${encodeURIComponent(operation.id)}`,
      })),
      ...actsOn({ nodes: [...nodes.values()], models: models.data ?? [], backends: backends.data ?? [] }, permissions),
    ],
    [permissions, nodes, operations, models.data, backends.data],
  );
}
