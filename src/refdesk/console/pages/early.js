// Before the first paint, so that a chosen theme does not flash in the other one. theme.js does the rest.
{
  const chosen = localStorage.getItem("refdesk.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
