/** The icons of the page, drawn on a grid of 16. They never stand alone: a word or a label is beside each. */

const PATHS = {
  fleet: "M2 2h5v5H2zM9 2h5v5H9zM2 9h5v5H2zM9 9h5v5H9z",
  models: "M8 1.5 14 5v6l-6 3.5L2 11V5zM2.3 5.1 8 8.3l5.7-3.2M8 8.3v6",
  backends: "M2 3h12v4H2zM2 9h12v4H2zM4.5 5h.01M4.5 11h.01",
  activity: "M1.5 8.5h3l2-5.5 3 10 2-4.5h3",
  chat: "M2 3h12v8H7l-3.5 3v-3H2z",
  rules: "M2.5 4h7M12.5 4h1M2.5 8h2M7.5 8h6M2.5 12h6M11.5 12h2M11 2.5v3M6 6.5v3M10 10.5v3",
  access: "M10.5 2a3.5 3.5 0 1 1-2.9 5.5L2 13v1h2.5v-2h2v-2l1.3-1.3M11 5h.01",
  search: "M7 2.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9zM10.3 10.3 14 14",
  close: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  check: "M3 8.5 6.5 12 13 4.5",
  chevron: "M6 3.5 10.5 8 6 12.5",
  down: "M3.5 6 8 10.5 12.5 6",
  up: "M3.5 10 8 5.5 12.5 10",
  table: "M2 3h12v10H2zM2 6.5h12M2 9.8h12M6 6.5V13",
  theme: "M8 2a6 6 0 1 0 0 12zM8 2a6 6 0 0 1 0 12",
  person: "M8 2.5a2.7 2.7 0 1 1 0 5.4 2.7 2.7 0 0 1 0-5.4zM2.8 14c.4-3 2.4-4.6 5.2-4.6s4.8 1.6 5.2 4.6",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  retry: "M13 8a5 5 0 1 1-1.5-3.6M13 2v3h-3",
  stop: "M4 4h8v8H4z",
  plus: "M8 3v10M3 8h10",
  arrow: "M3 8h10M9 4l4 4-4 4",
  download: "M8 2.5v8M4.5 7.5 8 11l3.5-3.5M3 13.5h10",
  filter: "M2 3.5h12L9.5 9v4l-3 1.5V9z",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg
      width={size}
      height={size}
      viewBox="0 0 16 16"
      fill="none"
      stroke="currentColor"
      strokeWidth="1.4"
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
      focusable="false"
    >
      <path d={PATHS[name]} />
    </svg>
  );
}
