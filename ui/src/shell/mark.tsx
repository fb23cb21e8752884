/** The mark of Corral: a fence. */

import styles from "./mark.module.css";

export function Mark() {
  return (
    <svg width="22" height="22" viewBox="0 0 32 32" aria-hidden="true" className={styles.mark}>
      <rect width="32" height="32" rx="7" />
      <path d="M5 13h22M5 20h22M9 8v17M16 8v17M23 8v17" />
    </svg>
  );
}
