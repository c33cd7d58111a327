// <pg-spark values="[[1,2],[3,4]]"> and <pg-plot data="{…}">: uPlot in a shadow, so that a refresh of the page that
// changes no number leaves the drawing alone.
(() => {
  const here = document.currentScript.src;
  const sheet = new URL("../vendor/uplot.css", here).href;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  const day = (at) => new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: moments.zone() }).format(at);
  const drawn = new Set();
  const steps = {
    seconds: [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400,
      21600, 43200, 86400, 172800, 604800, 1209600, 2592000],
  };

  const seconds = (value) => {
    if (value == null) return "–";
    if (value === 0) return "0";
    if (value < 1) return `${+(value * 1000).toPrecision(2)} ms`;
    if (value < 60) return `${+value.toPrecision(2)} s`;
    if (value < 3600) return `${+(value / 60).toPrecision(2)} min`;
    if (value < 86400) return `${+(value / 3600).toPrecision(2)} h`;
    return `${+(value / 86400).toPrecision(2)} d`;
  };
  const alone = (values, spans) => {
    const known = values.flatMap((value, place) => (value == null ? [] : [place]));
    return spans ? (known.length === 1 ? known : []) : known.filter((place) => values[place - 1] == null && values[place + 1] == null);
  };
  const shown = { messages: (value) => (value == null ? "–" : whole.format(value)), seconds };

  class Drawn extends HTMLElement {
    static observedAttributes = ["values"];
    connectedCallback() {
      if (!this.shadowRoot) {
        const root = this.attachShadow({ mode: "open" });
        const link = document.createElement("link");
        link.rel = "stylesheet";
        link.href = sheet;
        this.place = document.createElement("div");
        root.append(link, this.place);
      }
      drawn.add(this);
      this.watcher = new ResizeObserver(() => {
        if (this.width !== this.clientWidth) this.draw();
      });
      this.watcher.observe(this);
      this.draw();
    }
    disconnectedCallback() {
      drawn.delete(this);
      this.watcher.disconnect();
      this.plot?.destroy();
      this.plot = null;
    }
    attributeChangedCallback(name, before, after) {
      if (this.isConnected && before !== after) this.draw();
    }
    draw() {
      if (!this.place || !this.clientWidth) return;
      this.width = this.clientWidth;
      let values;
      try { values = JSON.parse(this.getAttribute("values")); } catch { return; }
      this.plot?.destroy();
      this.plot = new uPlot(...this.drawing(values), this.place);
    }
  }

  customElements.define("pg-spark", class extends Drawn {
    drawing([first, second]) {
      const top = Math.max(1, ...first, ...second);
      const paint = colour(this.getAttribute("colour") ?? "--c0");
      return [{
        width: this.clientWidth, height: 28, padding: [2, 1, 2, 1],
        cursor: { show: false }, legend: { show: false }, select: { show: false },
        axes: [{ show: false }, { show: false }],
        scales: { x: { time: false }, y: { range: [0, top] } },
        series: [
          {},
          { fill: `${paint}33`, stroke: paint, width: 1.5, points: { show: false } },
          { stroke: colour("--c2"), width: 1.5, points: { show: false } },
        ],
      }, [first.map((_, place) => place), first, second.length ? second : first.map(() => null)]];
    }
  });

  customElements.define("pg-plot", class extends Drawn {
    // {unit, times: [seconds], series: [{name, colour, values}]}; the legend and a table are on the page.
    drawing({ unit, times, series }) {
      const show = shown[unit];
      const axis = { stroke: colour("--axis"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
      return [{
        width: this.clientWidth, height: this.clientHeight,
        padding: [8, 20, 0, 0],
        cursor: { drag: { x: false, y: false } },
        legend: { show: false },
        scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, unit === "messages" ? 4 : 0.001)] } },
        axes: [
          { ...axis, space: 64, size: 26, values: (_, ticks, __, ___, every) => ticks.map((at) => {
            const clock = moments.text(at * 1000).slice(11, 16);
            return every >= 86400 || clock === "00:00" ? day(at * 1000) : clock;
          }) },
          { ...axis, size: 58, incrs: steps[unit], values: (_, ticks) => ticks.map(show) },
        ],
        tzDate: (at) => uPlot.tzDate(new Date(at * 1000), moments.zone()),
        series: [{}, ...series.map((one, place) => ({
          label: one.name,
          stroke: colour(one.colour),
          fill: place === 0 && unit === "messages" ? `${colour(one.colour)}26` : undefined,
          width: 1.8,
          // A number without neighbours makes no line: it is a point.
          points: { show: true, size: 5, filter: (plot, which) => alone(plot.data[which], unit === "seconds") },
          spanGaps: unit === "seconds",
        }))],
      }, [times, ...series.map((one) => one.values)]];
    }
  });

  document.addEventListener("themed", () => drawn.forEach((one) => one.draw()));
})();
