// @ts-check
/** Light and dark theme: the system's preference unless the user chose one, saved in this browser. */

const THEME_KEY = "refdesk.theme";

export function applyTheme() {
  const chosen = localStorage.getItem(THEME_KEY);
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
}

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function switchTheme() {
  localStorage.setItem(THEME_KEY, isDark() ? "light" : "dark");
  applyTheme();
}
