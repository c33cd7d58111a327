// Airflow keeps its colour mode here, on the same origin; without it the browser's own preference decides.
(() => {
  const follow = () => {
    let mode = null;
    try { mode = localStorage.getItem("theme"); } catch { /* storage may be off */ }
    if (mode === "light" || mode === "dark") document.documentElement.dataset.theme = mode;
    else delete document.documentElement.dataset.theme;
    document.dispatchEvent(new Event("themed"));
  };
  addEventListener("storage", (event) => { if (event.key === "theme" || event.key === null) follow(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", follow);
  follow();
})();
