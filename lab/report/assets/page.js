"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const charts = read("charts");
  const drawn = [];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (s) => css("--s" + s.colour);
  const say = (v) => v == null ? "–" : Number(v.toPrecision(3)).toLocaleString("en").replaceAll(",", "\u00a0");
  const font = "12px system-ui, sans-serif";

  // whiskers draws the intervals of a series.
  function whiskers(u, chart) {
    const c = u.ctx;
    c.save();
    c.beginPath();
    c.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    c.clip();
    chart.series.forEach((s, i) => {
      if (!s.low || !u.series[i + 1].show) return;
      c.strokeStyle = colour(s);
      c.lineWidth = 2 * devicePixelRatio;
      c.beginPath();
      chart.data[0].forEach((x, k) => {
        if (s.low[k] == null) return;
        const at = u.valToPos(x, "x", true);
        c.moveTo(at, u.valToPos(s.low[k], "y", true));
        c.lineTo(at, u.valToPos(s.high[k], "y", true));
      });
      c.stroke();
    });
    c.restore();
  }

  function make(box, chart) {
    const width = Math.min(box.parentElement.clientWidth, 760);
    const axis = (label, extra) => ({
      label, labelSize: 18, gap: 4, labelFont: font, font, stroke: css("--soft"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--rule"), width: 1 },
      ...extra,
    });
    const short = (u, values) => values.map((v) => v == null ? "" : Math.abs(v) >= 1e4 ? v / 1e3 + "k" : String(Number(v.toPrecision(6))));
    // Few places on the x axis are its ticks.
    const xs = chart.data[0];
    const places = xs.length <= 14 ? { splits: (u) => {
      let last = -Infinity;
      return xs.filter((x) => {
        const at = u.valToPos(x, "x");
        if (at - last < 30) return false;
        last = at;
        return true;
      });
    }, filter: (u, s) => s } : {};
    const room = (low, high, log) => {
      if (low == null) return [0, 1];
      if (log) {
        const r = Math.max((high / low) ** 0.05, 1.02);
        return [low / r, high * r];
      }
      const r = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
      return [low >= 0 && low < high * 0.4 ? 0 : low - r, high + r];
    };
    const range = (log) => (u, low, high, key) => {
      if (key === "y") {
        for (const s of chart.series) {
          for (const v of [...(s.low || []), ...(s.high || [])]) {
            if (v != null && (!log || v > 0)) { low = Math.min(low ?? v, v); high = Math.max(high ?? v, v); }
          }
        }
      }
      return room(low, high, log);
    };
    // A logarithmic axis of little more than a decade would have one tick: 1, 2 and 5 are ticks, too.
    const logTicks = (u, key, low, high) => {
      const out = [];
      const steps = high / low > 300 ? [1] : high / low > 3 ? [1, 2, 5] : [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9];
      for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
        for (const m of steps) {
          const v = Number((m * 10 ** e).toPrecision(6));
          if (v >= low && v <= high) out.push(v);
        }
      }
      return out;
    };
    const log = { splits: (u, i, low, high) => logTicks(u, i, low, high), filter: (u, s) => s };
    const scales = { x: { time: false, distr: chart.xlog ? 3 : 1, range: range(chart.xlog) }, y: { distr: chart.ylog ? 3 : 1, range: range(chart.ylog) } };
    const axes = [axis(chart.x, { values: short, size: 32, ...(chart.xlog ? log : {}), ...places }), axis(chart.y, { values: short, size: 56, ...(chart.ylog ? log : {}) })];
    const series = [{ label: chart.x, value: (u, v) => say(v) }].concat(chart.series.map((s) => ({
      label: s.label, stroke: colour(s), width: s.points ? 0 : 2, dash: s.dash ? [6, 4] : undefined, spanGaps: true,
      paths: s.points ? () => null : undefined,
      points: { show: s.points || chart.data[0].length <= 40, size: s.points && chart.data[0].length > 40 ? 4 : 8, fill: colour(s), stroke: colour(s) },
      value: (u, v, i, k) => k == null || v == null ? "–" : say(v) + (s.low && s.low[k] != null ? " (" + say(s.low[k]) + " to " + say(s.high[k]) + ")" : ""),
    })));
    return new uPlot({ width, height: width < 500 ? 300 : 360, scales, axes, series, cursor: { y: false }, legend: { markers: { fill: (u, i) => colour(chart.series[i - 1]) } }, hooks: { draw: [(u) => whiskers(u, chart)] } }, chart.data, box);
  }

  function draw() {
    for (const u of drawn.splice(0)) u.destroy();
    for (const box of document.querySelectorAll("[data-chart]")) {
      const chart = charts[box.dataset.chart];
      const figure = box.closest("figure");
      figure.classList.add("drawn");
      try {
        drawn.push(make(box, chart));
      } catch (e) {
        figure.classList.remove("drawn"); // the drawing stays
        console.error("chart " + box.dataset.chart, e);
      }
    }
  }

  const save = document.getElementById("save");
  for (const f of read("data")) {
    const b = document.createElement("button");
    b.type = "button";
    b.textContent = "Save " + f.Name;
    b.addEventListener("click", () => {
      const a = document.createElement("a");
      a.href = URL.createObjectURL(new Blob([f.Content], { type: f.Type }));
      a.download = f.Name;
      a.click();
      setTimeout(() => URL.revokeObjectURL(a.href), 1000);
    });
    save.append(b);
  }

  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  let width = innerWidth, waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(draw, 100);
  });
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("main details:not([open])")];
    for (const d of opened) d.open = true;
  });
  addEventListener("afterprint", () => {
    for (const d of opened) d.open = false;
  });
  document.documentElement.dataset.ready = "yes";
})();
