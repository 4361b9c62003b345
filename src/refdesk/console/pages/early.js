// Applies the saved theme before the first paint, to avoid a flash. theme.js does the rest.
{
  const chosen = localStorage.getItem("refdesk.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
