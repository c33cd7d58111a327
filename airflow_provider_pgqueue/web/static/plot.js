// <pg-spark values="[[1,2],[3,4]]"> and <pg-plot data="{…}">: uPlot in a shadow, so that a refresh of the page that
// changes no number leaves the drawing alone.
(() => {
  const here = document.currentScript.src;
  const sheet = new URL("../vendor/uplot.css", here).href;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  const drawn = new Set();

  const seconds = (value) => {
    if (value == null) return "–";
    if (value === 0) return "0";
    if (value < 1) return `${+(value * 1000).toPrecision(2)} ms`;
    if (value < 60) return `${+value.toPrecision(2)} s`;
    if (value < 3600) return `${+(value / 60).toPrecision(2)} min`;
    if (value < 86400) return `${+(value / 3600).toPrecision(2)} h`;
    return `${+(value / 86400).toPrecision(2)} d`;
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
    drawing([arrivals, completions]) {
      const top = Math.max(1, ...arrivals, ...completions);
      return [{
        width: this.clientWidth, height: 28, padding: [2, 1, 2, 1],
        cursor: { show: false }, legend: { show: false }, select: { show: false },
        axes: [{ show: false }, { show: false }],
        scales: { x: { time: false }, y: { range: [0, top] } },
        series: [
          {},
          { fill: colour("--c0") + "33", stroke: colour("--c0"), width: 1.5, points: { show: false } },
          { stroke: colour("--c2"), width: 1.5, points: { show: false } },
        ],
      }, [arrivals.map((_, place) => place), arrivals, completions]];
    }
  });

  customElements.define("pg-plot", class extends Drawn {
    // {unit, stacked, times: [seconds], series: [{name, colour, values}]}
    drawing({ unit, stacked, times, step, series }) {
      const show = shown[unit];
      const axis = { stroke: colour("--axis"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
      const sums = times.map(() => 0);
      const heights = series.map((one) => (stacked ? one.values.map((value, place) => (sums[place] += value ?? 0)) : one.values));
      const lines = series.map((one, place) => {
        const paint = colour(one.colour);
        return {
          label: one.name,
          stroke: paint,
          width: stacked ? 0 : 1.8,
          fill: stacked ? paint : undefined,
          paths: stacked ? uPlot.paths.bars({ size: [0.86, 40], align: 1 }) : one.bars ? uPlot.paths.stepped({ align: 1 }) : undefined,
          points: { show: false },
          spanGaps: false,
          value: (_, __, ___, at) => (at == null ? "–" : show(one.values[at])),
        };
      });
      // The highest sum is painted first, and the lower ones over it.
      if (stacked) { lines.reverse(); heights.reverse(); }
      return [{
        width: this.clientWidth, height: this.clientHeight - (this.clientWidth < 520 ? 44 : 28),
        cursor: { drag: { x: false, y: false }, points: { show: !stacked } },
        legend: { live: true },
        scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, unit === "messages" ? 4 : 0.001)] } },
        axes: [{ ...axis, space: 70, values: [
          [86400, "{D} {MMM}", null, null, null, null, null, null, 1],
          [3600, "{HH}:{mm}", "\n{D} {MMM}", null, null, null, null, null, 1],
          [60, "{HH}:{mm}", "\n{D} {MMM}", null, null, null, null, null, 1],
        ] }, { ...axis, size: 56, values: (_, ticks) => ticks.map(show) }],
        tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
        series: [{ label: "UTC", value: (_, at) => (at == null ? "–" : new Date(at * 1000).toISOString().slice(5, 16).replace("T", " ")) }, ...lines],
      }, [times, ...heights]];
    }
  });

  document.addEventListener("themed", () => drawn.forEach((one) => one.draw()));
})();
