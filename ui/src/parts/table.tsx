/** A table for a thousand rows: only those near the window are in the document. Sorting is by column.
 *
 * It scrolls with the page. Columns that do not fit a narrow screen are left out by their `from`.
 */

import { useVirtualizer } from "@tanstack/react-virtual";
import { type ReactNode, useLayoutEffect, useMemo, useRef, useState } from "react";

import { classes } from "./classes";
import { Icon } from "./icons";
import { SCROLLER_ID } from "./scroller";
import styles from "./table.module.css";
import { useWidth, type Width } from "./width";

export interface Column<Row> {
  readonly key: string;
  readonly title: string;
  /** A track of CSS grid: `1fr`, `minmax(120px, 2fr)`, `96px`. */
  readonly width: string;
  readonly cell: (row: Row) => ReactNode;
  readonly sort?: (one: Row, other: Row) => number;
  readonly isNumber?: boolean;
  /** The narrowest screen that shows it; `phone` where nothing is said. */
  readonly from?: Width;
}

export interface Order {
  readonly key: string;
  readonly isDescending: boolean;
}

interface TableProps<Row> {
  readonly label: string;
  readonly rows: readonly Row[];
  readonly columns: readonly Column<Row>[];
  readonly rowKey: (row: Row) => string;
  /** Sorted so at first; people may choose another column. Without it, rows stay in the order given. */
  readonly order?: Order;
  readonly rowHeight?: number;
  readonly onRow?: (row: Row) => void;
  readonly isMarked?: (row: Row) => boolean;
  /** Boxes before the rows. */
  readonly selection?: {
    readonly selected: ReadonlySet<string>;
    readonly onChange: (selected: ReadonlySet<string>) => void;
  };
}

const ALL_AT_ONCE = 60;
const OVERSCAN = 8;
const ORDER: readonly Width[] = ["phone", "tablet", "wide"];

export function Table<Row>(props: TableProps<Row>) {
  const { rows, rowKey, rowHeight = 32 } = props;
  const width = useWidth();
  const [order, setOrder] = useState<Order | null>(props.order ?? null);
  const columns = props.columns.filter((column) => ORDER.indexOf(column.from ?? "phone") <= ORDER.indexOf(width));
  const sorted = useMemo(() => sortRows(rows, props.columns, order), [rows, props.columns, order]);
  const tracks = [...(props.selection === undefined ? [] : ["32px"]), ...columns.map((column) => column.width)].join(
    " ",
  );
  const rowProps = { props, columns, tracks, rowHeight };
  return (
    // biome-ignore lint/a11y/useSemanticElements: rows are placed one by one, which <table> does not allow
    <div className={styles.table} role="table" aria-label={props.label} aria-rowcount={rows.length + 1}>
      <Head {...rowProps} order={order} setOrder={setOrder} />
      {sorted.length <= ALL_AT_ONCE ? (
        // biome-ignore lint/a11y/useSemanticElements: see above
        <div role="rowgroup">
          {sorted.map((row, index) => (
            <TableRow key={rowKey(row)} row={row} index={index} {...rowProps} />
          ))}
        </div>
      ) : (
        <VirtualRows sorted={sorted} {...rowProps} />
      )}
    </div>
  );
}

interface RowProps<Row> {
  readonly props: TableProps<Row>;
  readonly columns: readonly Column<Row>[];
  readonly tracks: string;
  readonly rowHeight: number;
}

function Head<Row>({
  props,
  columns,
  tracks,
  order,
  setOrder,
}: RowProps<Row> & { order: Order | null; setOrder: (order: Order) => void }) {
  return (
    // biome-ignore lint/a11y/useSemanticElements: see Table
    <div role="rowgroup" className={styles.head}>
      {/* biome-ignore lint/a11y/useSemanticElements: see Table */}
      {/* biome-ignore lint/a11y/useFocusableInteractive: a row of a table is not a control */}
      <div role="row" aria-rowindex={1} className={styles.row} style={{ gridTemplateColumns: tracks }}>
        {props.selection !== undefined && <SelectAll {...props} selection={props.selection} />}
        {columns.map((column) => (
          <ColumnHead key={column.key} column={column} order={order} setOrder={setOrder} />
        ))}
      </div>
    </div>
  );
}

function ColumnHead<Row>({
  column,
  order,
  setOrder,
}: {
  column: Column<Row>;
  order: Order | null;
  setOrder: (order: Order) => void;
}) {
  const isOrder = order?.key === column.key;
  const isDescending = isOrder && order.isDescending;
  const sorting = isOrder ? (isDescending ? "descending" : "ascending") : "none";
  return (
    // biome-ignore lint/a11y/useSemanticElements: see Table
    // biome-ignore lint/a11y/useFocusableInteractive: the button inside is what is pressed
    <div
      role="columnheader"
      className={classes(styles.cell, column.isNumber && styles.number)}
      {...(column.sort === undefined ? {} : { "aria-sort": sorting })}
    >
      {column.sort === undefined ? (
        column.title
      ) : (
        <button
          type="button"
          className={styles.sort}
          onClick={() => setOrder({ key: column.key, isDescending: isOrder && !isDescending })}
        >
          {column.title}
          {isOrder && <Icon name={isDescending ? "down" : "up"} size={12} />}
        </button>
      )}
    </div>
  );
}

function VirtualRows<Row>({ sorted, ...rowProps }: RowProps<Row> & { sorted: readonly Row[] }) {
  const body = useRef<HTMLDivElement>(null);
  const [margin, setMargin] = useState(0);
  useLayoutEffect(() => {
    const scroller = document.getElementById(SCROLLER_ID);
    if (body.current === null || scroller === null) return;
    setMargin(body.current.getBoundingClientRect().top - scroller.getBoundingClientRect().top + scroller.scrollTop);
  }, []);
  const virtual = useVirtualizer({
    count: sorted.length,
    getScrollElement: () => document.getElementById(SCROLLER_ID),
    estimateSize: () => rowProps.rowHeight,
    overscan: OVERSCAN,
    scrollMargin: margin,
  });
  return (
    // biome-ignore lint/a11y/useSemanticElements: see Table
    <div role="rowgroup" ref={body} className={styles.virtual} style={{ height: virtual.getTotalSize() }}>
      {virtual.getVirtualItems().map(({ index, start }) => {
        const row = sorted[index];
        if (row === undefined) return null;
        const key = rowProps.props.rowKey(row);
        return <TableRow key={key} row={row} index={index} top={start - margin} {...rowProps} />;
      })}
    </div>
  );
}

function TableRow<Row>({
  props,
  columns,
  tracks,
  rowHeight,
  row,
  index,
  top,
}: RowProps<Row> & { row: Row; index: number; top?: number }) {
  const { onRow, isMarked, selection, rowKey } = props;
  const key = rowKey(row);
  const place = top === undefined ? { minHeight: rowHeight } : { height: rowHeight, transform: `translateY(${top}px)` };
  return (
    // biome-ignore lint/a11y/useSemanticElements: see Table
    // biome-ignore lint/a11y/useFocusableInteractive: the link in its first cell is what the keyboard reaches
    // biome-ignore lint/a11y/useKeyWithClickEvents: a click on the row is a larger target for that link
    <div
      role="row"
      aria-rowindex={index + 2}
      className={classes(
        styles.row,
        onRow && styles.pressable,
        isMarked?.(row) && styles.marked,
        top !== undefined && styles.placed,
      )}
      style={{ gridTemplateColumns: tracks, ...place }}
      onClick={onRow && ((event) => isBackground(event.target) && onRow(row))}
    >
      {selection !== undefined && <Select rowId={key} selection={selection} />}
      {columns.map((column) => (
        // biome-ignore lint/a11y/useSemanticElements: see Table
        <div role="cell" key={column.key} className={classes(styles.cell, column.isNumber && styles.number)}>
          {column.cell(row)}
        </div>
      ))}
    </div>
  );
}

/** Whether a click hit the row itself and not a control in it. */
function isBackground(target: EventTarget): boolean {
  return target instanceof Element && target.closest("a, button, input, label") === null;
}

type Selection = NonNullable<TableProps<unknown>["selection"]>;

function Select({ rowId, selection }: { rowId: string; selection: Selection }) {
  const { selected, onChange } = selection;
  const toggle = () => {
    const next = new Set(selected);
    if (!next.delete(rowId)) next.add(rowId);
    onChange(next);
  };
  return (
    // biome-ignore lint/a11y/useSemanticElements: see Table
    <div role="cell" className={styles.cell}>
      <input type="checkbox" aria-label="Select this row" checked={selected.has(rowId)} onChange={toggle} />
    </div>
  );
}

function SelectAll<Row>({ rows, rowKey, selection }: TableProps<Row> & { selection: Selection }) {
  const areAll = rows.length > 0 && rows.every((row) => selection.selected.has(rowKey(row)));
  return (
    // biome-ignore lint/a11y/useSemanticElements: see Table
    // biome-ignore lint/a11y/useFocusableInteractive: the box inside is what is pressed
    <div role="columnheader" className={styles.cell}>
      <input
        type="checkbox"
        aria-label="Select all rows"
        checked={areAll}
        onChange={() => selection.onChange(new Set(areAll ? [] : rows.map(rowKey)))}
      />
    </div>
  );
}

/** Rows in the order of a column; those that are equal stay in the order given. */
export function sortRows<Row>(
  rows: readonly Row[],
  columns: readonly Column<Row>[],
  order: Order | null,
): readonly Row[] {
  const compare = columns.find((column) => column.key === order?.key)?.sort;
  if (compare === undefined) return rows;
  return rows.toSorted((one, other) => (order?.isDescending ? compare(other, one) : compare(one, other)));
}

const collator = new Intl.Collator("en", { numeric: true });

/** Compares names so that node-2 is before node-10. */
export function byText<Row>(text: (row: Row) => string): (one: Row, other: Row) => number {
  return (one, other) => collator.compare(text(one), text(other));
}

/** Compares numbers; those that nobody knows come first. */
export function byNumber<Row>(number: (row: Row) => number | null | undefined): (one: Row, other: Row) => number {
  return (one, other) => (number(one) ?? -1) - (number(other) ?? -1);
}
