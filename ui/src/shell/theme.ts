/** Light, dark, or what the machine prefers. The choice is this browser's. */

export type Theme = "system" | "light" | "dark";

const KEY = "corral-theme";
const DARK = "(prefers-color-scheme: dark)";

export function storedTheme(): Theme {
  const stored = localStorage.getItem(KEY);
  return stored === "light" || stored === "dark" ? stored : "system";
}

export function chooseTheme(theme: Theme): void {
  if (theme === "system") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, theme);
  applyTheme(theme);
}

export function applyTheme(theme: Theme): void {
  const isDark = theme === "dark" || (theme === "system" && matchMedia(DARK).matches);
  document.documentElement.dataset["theme"] = isDark ? "dark" : "light";
}

matchMedia(DARK).addEventListener("change", () => applyTheme(storedTheme()));
