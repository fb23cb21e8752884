/** Lines over time, for where people look rather than read. The library is fetched when the first one is shown. */

import { lazy, Suspense } from "react";

import styles from "./plot.module.css";
import { Loading } from "./states";

export interface Series {
  readonly name: string;
  readonly values: readonly (number | null)[];
}

export interface PlotProps {
  readonly title: string;
  /** Unix seconds of the first value. */
  readonly from: number;
  readonly stepSeconds: number;
  readonly series: readonly Series[];
  /** How a value is written on the axis and in the legend. */
  readonly format: (value: number) => string;
  readonly height?: number;
}

const PlotCanvas = lazy(() => import("./plot-canvas"));

export function Plot(props: PlotProps) {
  return (
    <figure className={styles.plot}>
      <figcaption className={styles.title}>{props.title}</figcaption>
      {props.series.length === 0 ? (
        <p className={styles.none}>Nothing was measured in this hour.</p>
      ) : (
        <Suspense fallback={<Loading lines={2} label={`Loading ${props.title}`} />}>
          <PlotCanvas {...props} />
        </Suspense>
      )}
    </figure>
  );
}

/** What the lines say, for those who cannot see them. */
export function summaryOf({ series, format }: Pick<PlotProps, "series" | "format">): string {
  return series.map(({ name, values }) => `${name}: ${latest(values, format)}`).join("; ");
}

function latest(values: readonly (number | null)[], format: (value: number) => string): string {
  const last = values.findLast((value) => value !== null);
  return last === undefined || last === null ? "no values" : `now ${format(last)}`;
}
