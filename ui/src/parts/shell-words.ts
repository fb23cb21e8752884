/** Words of a command as a POSIX shell reads them. Pure. */

const PLAIN = /^[A-Za-z0-9_@%+=:,./-]+$/;

/** Quotes a word only where it needs it; `'` inside becomes `'"'"'`. */
export function shellQuote(word: string): string {
  return PLAIN.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

export function shellCommand(words: readonly string[]): string {
  return words.map(shellQuote).join(" ");
}
