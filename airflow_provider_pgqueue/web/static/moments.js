// Shows moments in the time zone in which Airflow shows them; the server writes them in UTC, for whoever runs no script.
const moments = (() => {
  const known = (name) => {
    try { return typeof name === "string" && name && new Intl.DateTimeFormat("en", { timeZone: name }).resolvedOptions().timeZone; } catch { return null; }
  };
  // Airflow keeps what was chosen there here, on the same origin; without a choice it takes the browser's.
  const chosen = () => {
    try { return known(JSON.parse(localStorage.getItem("timezone"))); } catch { return null; }
  };
  const zone = () => chosen() || known(Intl.DateTimeFormat().resolvedOptions().timeZone) || "UTC";
  const parts = (at) => {
    const format = { timeZone: zone(), hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "longOffset" };
    const found = Object.fromEntries(new Intl.DateTimeFormat("en", format).formatToParts(at).map((one) => [one.type, one.value]));
    return { ...found, offset: found.timeZoneName.slice(3) || "+00:00" };
  };
  // As the shell prints them.
  const text = (at) => {
    const { year, month, day, hour, minute, second, offset } = parts(at);
    return `${year}-${month}-${day} ${hour}:${minute}:${second}${offset}`;
  };
  const local = (at) => text(at).replace(" ", "T").slice(0, 19);
  // What is behind UTC at a moment, and then at the moment that this gives: they differ where clocks change.
  const back = (written) => {
    const asked = Date.parse(`${written}Z`);
    let at = asked;
    for (const _ of [1, 2]) at = asked - (Date.parse(`${local(at)}Z`) - at);
    return new Date(at).toISOString();
  };

  const show = (root = document) => {
    for (const one of root.querySelectorAll("time[datetime]")) {
      const said = text(Date.parse(one.dateTime));
      if (one.textContent !== said) one.textContent = said;
      one.title = `${one.dateTime.slice(0, 19).replace("T", " ")} UTC`;
    }
    for (const one of root.querySelectorAll("[data-zone]")) one.textContent = zone();
  };
  const fields = [...document.querySelectorAll("input[type=datetime-local]")];
  for (const one of fields) {
    if (one.value) one.value = local(Date.parse(`${one.value}Z`));
  }
  document.addEventListener("formdata", (event) => {
    for (const one of fields) {
      if (one.form === event.target && one.value) event.formData.set(one.name, back(one.value));
    }
  });
  document.addEventListener("htmx:after:swap", () => show());
  addEventListener("storage", (event) => {
    if (event.key !== "timezone" && event.key !== null) return;
    show();
    document.dispatchEvent(new Event("themed"));
  });
  show();
  return { zone, text };
})();
