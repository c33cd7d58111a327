// Airflow keeps its colour mode here, on the same origin; without it the browser's own preference decides.
(() => {
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => {
    let mode = null;
    try { mode = localStorage.getItem("theme"); } catch { /* storage may be off */ }
    document.documentElement.dataset.theme = ["light", "dark"].includes(mode) ? mode : preferred.matches ? "dark" : "light";
    document.dispatchEvent(new Event("themed"));
  };
  addEventListener("storage", (event) => { if (event.key === "theme" || event.key === null) follow(); });
  preferred.addEventListener("change", follow);
  follow();
})();
