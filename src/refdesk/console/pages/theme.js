// @ts-check
/** Light or dark: as the system says, until somebody chooses; the choice is kept in this browser. */

const CHOICE = "refdesk.theme";

export function applyTheme() {
  const chosen = localStorage.getItem(CHOICE);
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
}

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function switchTheme() {
  localStorage.setItem(CHOICE, isDark() ? "light" : "dark");
  applyTheme();
}
