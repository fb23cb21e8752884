/** The canvas of a plot, drawn by uPlot. Only loaded together with it. */

import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import { type PlotProps, summaryOf } from "./plot";
import styles from "./plot.module.css";

const HEIGHT = 140;
const TONES = ["--tone-blue", "--tone-green", "--tone-purple", "--tone-yellow", "--tone-red", "--tone-grey"];

export default function PlotCanvas(props: PlotProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const names = props.series.map((one) => one.name).join("\n");
  const latest = useRef(props);
  latest.current = props;

  // biome-ignore lint/correctness/useExhaustiveDependencies: another set of lines is another plot; values only move it
  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    const drawn = new uPlot(optionsOf(latest.current, element), dataOf(latest.current), element);
    plot.current = drawn;
    const observer = new ResizeObserver(() => drawn.setSize({ width: element.clientWidth, height: drawn.height }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      drawn.destroy();
    };
  }, [names]);

  useEffect(() => plot.current?.setData(dataOf(props)), [props]);

  return <div ref={place} className={styles.canvas} role="img" aria-label={`${props.title}. ${summaryOf(props)}`} />;
}

const FONT = "11px system-ui, sans-serif";

/** The time of day at which a line of the grid is. */
function timeOf(seconds: number): string {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

/** Values that are written alike are written once. */
function withoutRepeats(labels: readonly string[]): string[] {
  return labels.map((label, index) => (label === labels[index - 1] ? "" : label));
}

function dataOf({ from, stepSeconds, series }: PlotProps): uPlot.AlignedData {
  const length = Math.max(0, ...series.map((one) => one.values.length));
  const times = Array.from({ length }, (_, index) => from + index * stepSeconds);
  return [times, ...series.map((one) => [...one.values])];
}

function optionsOf({ series, format, height = HEIGHT }: PlotProps, element: HTMLElement): uPlot.Options {
  const colour = (name: string) => getComputedStyle(element).getPropertyValue(name).trim();
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  return {
    width: element.clientWidth,
    height,
    cursor: { drag: { x: false, y: false } },
    legend: { show: series.length > 1, live: false },
    axes: [
      { ...axis, font: FONT, values: (_plot, times) => times.map(timeOf) },
      { ...axis, font: FONT, size: 56, values: (_plot, values) => withoutRepeats(values.map(format)) },
    ],
    scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    series: [
      {},
      ...series.map((one, index) => ({
        label: one.name,
        stroke: colour(TONES[index % TONES.length] ?? "--text"),
        width: 1.5,
        points: { show: false },
        value: (_plot: uPlot, value: number | null) => (value === null ? "–" : format(value)),
      })),
    ],
  };
}
