// Refreshes the living part of the page while somebody looks at it, and leads out of Airflow's frame.
(() => {
  const live = () => document.getElementById("live");
  const says = (text, unseen = false) => {
    const place = document.getElementById("says");
    place?.classList.toggle("unseen", unseen);
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
  document.addEventListener("htmx:after:swap", () => {
    if (live()?.classList.contains("stale")) says("");
    live()?.classList.remove("stale");
  });

  // A screen reader says what changes after the page is there: what came of an action stands on it from the beginning.
  const told = document.querySelector("[data-told]")?.textContent.trim();
  if (told) setTimeout(() => says(told, true), 100);

  // A form is sent once, however often its button is pressed; the server would do it once, too, but say less.
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
  });
  addEventListener("pageshow", (event) => {
    if (event.persisted) document.querySelectorAll("form[data-sent]").forEach((form) => delete form.dataset.sent);
  });

  // An action on many messages is many short ones.
  document.querySelector("form[data-goes-on]")?.requestSubmit();

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
