// The charts, drawn by plotly.js, which is fetched when the page has been painted.

import { CHARTS } from "./chart_data.js";
import { byId, h, s, set, setText, show, table } from "./dom.js";

// plotly.js brings a style sheet for maps, which the page's security policy would refuse with a complaint in the
// console. It asks for this id first, so an element that has it spares both; we draw no maps.
const MAP_STYLES = "9f215cf04c5486422605d13261cb87401f4e7763b6296af81e98efbc0130da53";
const CONFIG = { displayModeBar: false, responsive: false, showTips: false, doubleClick: "reset" };

let library = null;

/** The library, at an address that changes with it, so that a browser fetches each version once. */
function loadLibrary() {
  library ??= new Promise((resolve, reject) => {
    document.head.append(h("meta", { id: MAP_STYLES }));
    const { content } = document.querySelector("meta[name=charts]");
    const script = h("script", { src: content });
    script.addEventListener("load", () => resolve(globalThis.Plotly));
    script.addEventListener("error", () => {
      script.remove();
      library = null;
      reject(new Error("the charting library cannot be loaded"));
    });
    afterPaint(() => document.head.append(script));
  });
  return library;
}

function afterPaint(act) {
  requestAnimationFrame(() => setTimeout(act));
}

/** A card for each chart, drawn while it is visible. */
export function mountCharts(store) {
  const cards = CHARTS.map(makeCard);
  for (const card of cards) byId(card.chart.place).append(card.root);

  const redraw = () => cards.forEach((card) => draw(card, store.state));
  const sight = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) cards.find((card) => card.root === entry.target).inSight = entry.isIntersecting;
      redraw();
    },
    { rootMargin: "300px" },
  );
  const size = new ResizeObserver(redraw);
  for (const card of cards) {
    sight.observe(card.root);
    size.observe(card.root);
    card.toggle.addEventListener("click", () => {
      card.asTable = !card.asTable;
      redraw();
    });
    card.nearer.addEventListener("click", () => {
      card.near = !card.near;
      redraw();
    });
  }
  store.on(["detail", "rounds", "overlay", "theme"], redraw);
}

function makeCard(chart) {
  const id = `chart-${chart.name}`;
  const parts = {
    plot: h("div", { class: "plot skeleton", role: "img" }),
    table: h("div", {
      class: "plot-table",
      role: "region",
      tabindex: "0",
      hidden: true,
    }),
    summary: h("p", { class: "card-note" }),
    toggle: h("button", { type: "button", class: "link", "aria-pressed": "false" }, "Table"),
    nearer: h("button", { type: "button", class: "link", "aria-pressed": "false" }, chart.nearer ?? ""),
    legend: h("ul", { class: "legend", "aria-hidden": "true" }),
    title: h("h2", { id }, chart.title),
  };
  const root = h(
    "section",
    { class: "card chart", "aria-labelledby": id },
    h(
      "header",
      { class: "card-head" },
      parts.title,
      h("div", { class: "chart-tools" }, chart.nearer ? parts.nearer : null, parts.toggle),
    ),
    parts.summary,
    parts.legend,
    parts.plot,
    parts.table,
  );
  return { ...parts, root, chart, asTable: false, near: false, inSight: false, drawn: "" };
}

function draw(card, { detail, rounds, overlay, theme }) {
  const width = Math.floor(card.root.clientWidth);
  if (!detail || width === 0) return;
  const last = rounds.at(-1);
  const key = [
    detail.run,
    rounds.length,
    last?.state,
    last?.phase,
    last?.union_size,
    overlay?.detail.run,
    theme,
    width,
    card.asTable,
    card.near,
    card.inSight,
  ].join();
  if (card.drawn === key) return;
  card.drawn = key;
  const colours = readColours();
  const built = { title: card.chart.title, ...card.chart.build({ detail, rounds, overlay, near: card.near }, colours) };
  showText(card, built);
  if (built.table.body.length === 0) return;
  if (card.asTable) card.table.replaceChildren(table(built.title, built.table.head, built.table.body));
  else if (card.inSight) plot(card, built, colours);
}

function showText(card, { title, summary, empty, traces, table: { body } }) {
  const hasData = body.length > 0;
  setText(card.title, title);
  set(card.table, { "aria-label": `${title}, as a table` });
  setText(card.summary, hasData ? summary : empty);
  set(card.plot, { "aria-label": `${title}. ${hasData ? summary : empty}` });
  set(card.toggle, { "aria-pressed": String(card.asTable), "aria-label": `Table: ${title}` });
  set(card.nearer, { "aria-pressed": String(card.near) });
  show(card.toggle, hasData);
  show(card.nearer, hasData && !card.asTable);
  show(card.legend, hasData && !card.asTable);
  card.legend.replaceChildren(
    ...(traces.length > 1 ? traces.map((trace) => h("li", {}, swatch(trace), trace.name)) : []),
  );
  show(card.plot, hasData && !card.asTable);
  show(card.table, hasData && card.asTable);
}

/** Legend sample of a series. */
function swatch({ type, mode, line, marker }) {
  const sample =
    type === "bar"
      ? s("rect", { x: 3, y: 0, width: 12, height: 12, rx: 2 })
      : mode === "markers" && !line
        ? s("path", { d: "M9 1.5L13.5 6L9 10.5L4.5 6z", class: "stroke" })
        : s("path", { d: "M0 6H18", class: "stroke", "stroke-dasharray": { dot: "1 4", dash: "5 4" }[line.dash] });
  const colour = (line ?? marker).color;
  sample.style.fill = type === "bar" ? colour : "none";
  if (type !== "bar") sample.style.stroke = colour;
  return s("svg", { viewBox: "0 0 18 12" }, sample);
}

async function plot(card, { traces, layout, summary }, colours) {
  try {
    const plotly = await loadLibrary();
    await plotly.react(
      card.plot,
      traces,
      dress(layout, colours, card.plot.clientWidth, findRange(traces)),
      CONFIG,
    );
    set(card.plot, { class: "plot" });
  } catch (error) {
    set(card.plot, { class: "plot" });
    card.drawn = "";
    setText(card.summary, `${summary} The picture is missing: ${error.message}. The table has the numbers.`);
  }
}

/** From half a round before the first to half a round after the last. */
function findRange(traces) {
  const rounds = traces.flatMap((trace) => trace.x);
  return [Math.min(...rounds) - 0.6, Math.max(...rounds) + 0.6];
}

/** Whole rounds between two ticks: at most ten ticks. */
function chooseStep(rounds) {
  const unit = 10 ** Math.max(0, Math.floor(Math.log10(rounds / 10)));
  return unit * [1, 2, 5, 10].find((times) => rounds / (times * unit) <= 10);
}

function dress(layout, colours, width, range) {
  const axis = {
    gridcolor: colours.grid,
    zerolinecolor: colours.grid,
    linecolor: colours.grid,
    tickcolor: colours.grid,
    fixedrange: true,
    automargin: true,
  };
  const { xaxis, yaxis = {}, yaxis2, ...rest } = layout;
  return {
    width,
    height: 226,
    uirevision: "kept",
    margin: { l: 8, r: yaxis2 ? 8 : 12, t: 6, b: 8 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: colours.font, size: 12, color: colours.quiet },
    hovermode: "x unified",
    hoverlabel: {
      bgcolor: colours.surface,
      bordercolor: colours.grid,
      font: { family: colours.font, size: 12, color: colours.ink },
    },
    showlegend: false,
    xaxis: {
      ...axis,
      showgrid: false,
      range,
      tickformat: "d",
      dtick: chooseStep(range[1] - range[0]),
      unifiedhovertitle: { text: "round %{x}" },
      ...xaxis,
    },
    yaxis: { ...axis, ...yaxis },
    ...(yaxis2 ? { yaxis2: { ...axis, ...yaxis2 } } : {}),
    ...rest,
  };
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    accent: read("accent"),
    soft: read("accent-soft"),
    ink: read("ink"),
    quiet: read("ink-2"),
    grid: read("line"),
    pale: read("line-strong"),
    surface: read("surface"),
    series: [1, 2, 3, 4, 5].map((number) => read(`series-${number}`)),
    font: getComputedStyle(document.body).fontFamily,
  };
}
