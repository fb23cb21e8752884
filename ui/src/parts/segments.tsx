/** A choice of a few, all in sight: radio buttons in one strip. */

import { Label, Radio, RadioGroup } from "react-aria-components";

import styles from "./segments.module.css";

export interface Segment<Id extends string> {
  readonly id: Id;
  readonly label: string;
}

interface SegmentsProps<Id extends string> {
  readonly label: string;
  readonly segments: readonly Segment<Id>[];
  readonly value: Id;
  readonly onChange: (value: Id) => void;
  readonly isLabelShown?: boolean;
}

export function Segments<Id extends string>({
  label,
  segments,
  value,
  onChange,
  isLabelShown = false,
}: SegmentsProps<Id>) {
  return (
    <RadioGroup
      className={styles.group}
      value={value}
      onChange={(next) => onChange(next as Id)}
      orientation="horizontal"
      {...(isLabelShown ? {} : { "aria-label": label })}
    >
      {isLabelShown && <Label className={styles.label}>{label}</Label>}
      <div className={styles.strip}>
        {segments.map((segment) => (
          <Radio key={segment.id} value={segment.id} className={styles.segment}>
            {segment.label}
          </Radio>
        ))}
      </div>
    </RadioGroup>
  );
}
