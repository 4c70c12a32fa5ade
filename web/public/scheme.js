// Sets light or dark before the first paint. It is a file, since the page's policy allows no inline script.
(() => {
  let scheme = "auto";
  try {
    scheme = localStorage.getItem("weir-scheme") || "auto";
  } catch {
    // No storage: the system decides.
  }
  const dark = scheme === "dark" || (scheme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.setAttribute("data-mantine-color-scheme", dark ? "dark" : "light");
})();
