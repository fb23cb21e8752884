/** Fields of forms: label above, hint and error below. The error is the server's sentence about that field. */

import type { ReactNode } from "react";
import {
  Button as AriaButton,
  Checkbox as AriaCheckbox,
  SearchField as AriaSearchField,
  Select as AriaSelect,
  TextField as AriaTextField,
  FieldError,
  Input,
  Label,
  ListBox,
  ListBoxItem,
  Popover,
  SelectValue,
  Text,
  TextArea,
} from "react-aria-components";

import { classes } from "./classes";
import styles from "./fields.module.css";
import { Icon } from "./icons";

interface TextFieldProps {
  readonly label: string;
  readonly value: string;
  readonly onChange: (value: string) => void;
  readonly hint?: ReactNode;
  readonly error?: string;
  readonly type?: "text" | "password" | "number";
  readonly placeholder?: string;
  readonly autoComplete?: string;
  readonly isRequired?: boolean;
  readonly autoFocus?: boolean;
  /** More than one line. */
  readonly lines?: number;
  readonly isMono?: boolean;
}

export function TextField({ label, hint, error = "", lines, isMono = false, placeholder, ...rest }: TextFieldProps) {
  const look = classes(styles.input, isMono && styles.mono);
  return (
    <AriaTextField {...rest} className={styles.field} isInvalid={error !== ""}>
      <Label className={styles.label}>{label}</Label>
      {lines === undefined ? (
        <Input className={look} placeholder={placeholder} spellCheck={false} />
      ) : (
        <TextArea className={look} rows={lines} placeholder={placeholder} spellCheck={false} />
      )}
      {hint !== undefined && (
        <Text slot="description" className={styles.hint}>
          {hint}
        </Text>
      )}
      <FieldError className={styles.error}>{error}</FieldError>
    </AriaTextField>
  );
}

interface SearchFieldProps {
  readonly label: string;
  readonly value: string;
  readonly onChange: (value: string) => void;
  readonly placeholder?: string;
}

/** The filter box of a list; its label is for those who do not see it. */
export function SearchField({ label, value, onChange, placeholder }: SearchFieldProps) {
  return (
    <AriaSearchField aria-label={label} value={value} onChange={onChange} className={styles.search}>
      <Icon name="search" size={14} />
      <Input className={styles.searchInput} placeholder={placeholder ?? label} spellCheck={false} />
      {value !== "" && (
        <AriaButton className={styles.clear} aria-label="Clear">
          <Icon name="close" size={12} />
        </AriaButton>
      )}
    </AriaSearchField>
  );
}

export interface Choice {
  readonly id: string;
  readonly label: string;
}

interface SelectProps {
  readonly label: string;
  readonly choices: readonly Choice[];
  readonly value: string;
  readonly onChange: (value: string) => void;
  /** The label is beside it in another form: keep it for those who do not see it. */
  readonly isLabelHidden?: boolean;
}

export function Select({ label, choices, value, onChange, isLabelHidden = false }: SelectProps) {
  return (
    <AriaSelect
      className={styles.field}
      value={value}
      onChange={(key) => onChange(String(key))}
      {...(isLabelHidden ? { "aria-label": label } : {})}
    >
      {!isLabelHidden && <Label className={styles.label}>{label}</Label>}
      <AriaButton className={styles.select}>
        <SelectValue className={styles.selectValue} />
        <Icon name="down" size={12} />
      </AriaButton>
      <Popover className={styles.popover}>
        <ListBox className={styles.list} items={choices}>
          {(choice) => <ListBoxItem className={styles.choice}>{choice.label}</ListBoxItem>}
        </ListBox>
      </Popover>
    </AriaSelect>
  );
}

export function Checkbox({
  children,
  isSelected,
  onChange,
  isDisabled = false,
}: {
  children: ReactNode;
  isSelected: boolean;
  onChange: (isSelected: boolean) => void;
  isDisabled?: boolean;
}) {
  return (
    <AriaCheckbox className={styles.checkbox} isSelected={isSelected} onChange={onChange} isDisabled={isDisabled}>
      <span className={styles.box}>{isSelected && <Icon name="check" size={12} />}</span>
      <span>{children}</span>
    </AriaCheckbox>
  );
}
