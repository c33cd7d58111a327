// Opens each page in the frame, and writes down what it finds there.
const frame = document.getElementById("frame");
const OURS = new Set(("HTML HEAD META TITLE LINK SCRIPT BODY A MAIN DIV P NAV H1 H2 H3 SECTION TABLE CAPTION THEAD TBODY TR TH TD SMALL B I UL OL LI DL DT DD PRE DETAILS "
  + "SUMMARY SPAN TIME FORM INPUT SELECT OPTION TEXTAREA LABEL BUTTON BR PROGRESS PG-SPARK PG-PLOT").split(" "));
const later = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

async function judge(path) {
  await new Promise((done) => { frame.onload = done; frame.src = path; });
  const page = frame.contentDocument;
  const observer = new frame.contentWindow.ReportingObserver(() => {}, { buffered: true, types: ["csp-violation"] });
  observer.observe();
  await later(200);
  const told = {
    broken: page.documentElement.dataset.broken ?? document.documentElement.dataset.broken ?? null,
    foreign: [...page.querySelectorAll("*")].filter((one) => !OURS.has(one.tagName)).map((one) => one.tagName),
    text: page.body.innerText,
    unnamed: [...page.querySelectorAll("table:not(:has(> caption)), th:not([scope]), pg-spark:not([role=img][aria-label]), pg-plot:not([role=img][aria-label])")]
      .map((one) => one.outerHTML.slice(0, 160)),
    wide: page.documentElement.scrollWidth > page.documentElement.clientWidth,
    drawn: [...page.querySelectorAll("pg-plot, pg-spark")].filter((one) => one.shadowRoot?.querySelector("canvas")).length,
  };
  if (path === "/pgqueue/") {
    page.getElementById("by-dead").focus();
    const before = page.activeElement.id;
    told.refreshed = await new Promise((done) => {
      page.addEventListener("htmx:after:swap", () => done(true));
      page.dispatchEvent(new Event("visibilitychange"));
      setTimeout(() => done(false), 3000);
    });
    await later(50);
    told.focus = [before, page.activeElement.id];
  }
  told.violations = observer.takeRecords().map((one) => `${one.body.effectiveDirective} ${one.body.blockedURL}`);
  observer.disconnect();
  if (frame.dataset.axe === "false") return told;
  const script = page.createElement("script");
  script.src = "/axe.js";
  await new Promise((done) => { script.onload = done; page.head.append(script); });
  const found = await frame.contentWindow.axe.run(page, { resultTypes: ["violations"] });
  told.checked = found.passes.length;
  told.axe = found.violations.map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
  return told;
}

(async () => {
  const told = {};
  for (const path of JSON.parse(document.getElementById("paths").textContent)) told[path] = await judge(path);
  const place = document.createElement("pre");
  place.id = "check";
  place.textContent = JSON.stringify(told);
  document.body.append(place);
})();
