/** Takes the focus when it appears: the button that brought it is gone, and whoever works by keyboard goes on here. */

import { type ReactNode, useEffect, useRef } from "react";

import styles from "./focus-here.module.css";

export function FocusHere({ children }: { children: ReactNode }) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => place.current?.focus(), []);
  return (
    <div ref={place} tabIndex={-1} className={styles.place}>
      {children}
    </div>
  );
}
