// Refreshes the living part of the page while somebody looks at it, and leads out of Airflow's frame.
(() => {
  const live = () => document.getElementById("live");
  const says = (text) => {
    const place = document.getElementById("says");
    if (place && place.textContent !== text) place.textContent = text;
  };
  let asking = false;

  const refresh = async () => {
    if (document.hidden || asking || !live()?.dataset.refreshes) return;
    // Whoever selects text or has a form open keeps it.
    if (String(getSelection()) || live().contains(document.activeElement?.closest("form"))) return;
    asking = true;
    try {
      await htmx.ajax("GET", location.pathname + location.search, { target: "#live", swap: "outerMorph" });
    } finally {
      asking = false;
    }
  };
  setInterval(refresh, 5000);
  document.addEventListener("visibilitychange", refresh);

  document.addEventListener("htmx:error", () => {
    says("The page could not be refreshed. It tries again every few seconds.");
    live()?.classList.add("stale");
  });
  document.addEventListener("htmx:after:swap", () => { says(""); live()?.classList.remove("stale"); });

  // Airflow's frame may not navigate the window around it, but a link of that window may.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-top]");
    if (!link || parent === window || event.ctrlKey || event.metaKey || event.shiftKey) return;
    try {
      const above = parent.document.createElement("a");
      above.href = link.href;
      above.hidden = true;
      parent.document.body.append(above);
      event.preventDefault();
      above.click();
      above.remove();
    } catch { /* another origin: the link opens in the frame */ }
  });
})();
