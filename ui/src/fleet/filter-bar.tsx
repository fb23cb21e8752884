/** Filters and view of the list of nodes; all of them are in the address. */

import { useMemo } from "react";
import { ToggleButton, ToggleButtonGroup } from "react-aria-components";

import type { NodeRow } from "../live/topics";
import { IconButton } from "../parts/button";
import { SearchField, Select } from "../parts/fields";
import { useFilters } from "../parts/filters";
import { Icon } from "../parts/icons";
import { useThrottled } from "../parts/throttled";
import { stateWord } from "../words.gen";
import styles from "./fleet.module.css";
import { groupKeys } from "./selection";

/** Labels change rarely, and to look through those of ten thousand nodes takes a moment. */
const KEYS_MILLISECONDS = 5000;
const FILTERS = ["status", "kind", "label", "disk"];

export function FilterBar({ nodes }: { nodes: ReadonlyMap<string, NodeRow> }) {
  const filters = useFilters();
  const calm = useThrottled(nodes, KEYS_MILLISECONDS);
  const keys = useMemo(() => groupKeys(calm.values()), [calm]);
  const choices = [{ id: "", label: "In one group" }, ...keys.map((key) => ({ id: key, label: `By ${key}` }))];
  const isTable = filters.get("view") === "table";
  return (
    <>
      {FILTERS.map((name) => (
        <ActiveFilter key={name} name={name} />
      ))}
      <div className={styles.find}>
        <SearchField
          label="Find nodes"
          placeholder="Name, label, model"
          value={filters.get("text")}
          onChange={(text) => filters.set("text", text)}
        />
      </div>
      {!isTable && keys.length > 0 && (
        <div className={styles.group}>
          <Select
            isLabelHidden
            label="Group by"
            choices={choices}
            value={filters.get("group")}
            onChange={(key) => filters.set("group", key)}
          />
        </div>
      )}
      <ToggleButtonGroup
        className={styles.views}
        aria-label="View"
        selectionMode="single"
        disallowEmptySelection
        selectedKeys={[isTable ? "table" : "grid"]}
        onSelectionChange={(chosen) => filters.set("view", chosen.has("table") ? "table" : "")}
      >
        <ToggleButton id="grid" aria-label="Grid" className={styles.view}>
          <Icon name="fleet" size={14} />
        </ToggleButton>
        <ToggleButton id="table" aria-label="Table" className={styles.view}>
          <Icon name="table" size={14} />
        </ToggleButton>
      </ToggleButtonGroup>
    </>
  );
}

/** A filter that came with a link, with a button that takes it away. */
function ActiveFilter({ name }: { name: string }) {
  const filters = useFilters();
  const value = filters.get(name);
  if (value === "") return null;
  return (
    <span className={styles.filter}>
      {wordsOf(name, value)}
      <IconButton icon="close" label={`Remove the filter ${name} ${value}`} onPress={() => filters.set(name, "")} />
    </span>
  );
}

function wordsOf(name: string, value: string): string {
  if (name === "status")
    return value
      .split(",")
      .map((status) => stateWord("node", status).label)
      .join(" or ");
  if (name === "disk") return "Little disk left";
  return `${name} ${value}`;
}
