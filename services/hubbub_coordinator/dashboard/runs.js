// The list of runs.

import { byId, h, reconcile, set, setText, show } from "./dom.js";
import { formatAgo, formatClock, formatDay, formatMetric, isShare, nameRun, plural, shortId } from "./format.js";
import { stateIcon } from "./icons.js";

export const ACTIVE = ["enrolling", "agreeing", "running", "paused"];
export const FILTERS = [
  { name: "all", states: [] },
  { name: "active", states: ACTIVE },
  { name: "done", states: ["completed"] },
  { name: "failed", states: ["failed"] },
  { name: "cancelled", states: ["cancelled"] },
];

/** Keep the list in step with the store. */
export function mountRuns(store, { nowS, onFilter, onMore }) {
  const list = byId("runs-list");
  reconcile(
    byId("runs-filters"),
    FILTERS,
    (filter) => filter.name,
    (filter) =>
      h(
        "button",
        { type: "button", class: "chip", "data-filter": filter.name, onclick: () => onFilter(filter.name) },
        filter.name,
      ),
  );
  byId("runs-more").addEventListener("click", onMore);
  list.addEventListener("keydown", moveWithArrows);

  store.on(["runs", "filter", "chosen", "runsLoaded"], (state) => {
    for (const button of byId("runs-filters").children) {
      set(button, { "aria-pressed": String(button.getAttribute("data-filter") === state.filter) });
    }
    reconcile(
      list,
      state.runs.items,
      (run) => run.run,
      makeRow,
      (row, run) => updateRow(row, run, state.chosen, nowS()),
    );
    keepOneTabStop(list);
    showEdges(state);
  });
  store.on(["tick"], (state) => {
    const runs = new Map(state.runs.items.map((run) => [run.run, run]));
    for (const row of list.children)
      setText(row.querySelector(".run-age"), sayAge(runs.get(row.getAttribute("data-run")), nowS()));
  });
}

function showEdges({ runs, filter, runsLoaded }) {
  setText(byId("runs-total"), runsLoaded ? runs.total : "");
  show(byId("runs-more"), runs.next !== null);
  const none = byId("runs-none");
  show(none, runsLoaded && runs.items.length === 0);
  setText(none, filter === "all" ? "No run yet." : `No run is ${filter}.`);
}

function makeRow(run) {
  return h(
    "li",
    { "data-run": run.run },
    h(
      "a",
      { href: `#/runs/${run.run}`, class: "run-row" },
      h("span", { class: "run-line" }, h("span", { class: "run-state" }), h("span", { class: "run-metric" })),
      h("span", { class: "run-line quiet" }, h("span", { class: "run-what" }), h("span", { class: "run-age" })),
      h(
        "span",
        { class: "run-line" },
        h(
          "span",
          { class: "progress", "aria-hidden": "true" },
          h("span", { class: "progress-done" }),
          h("span", { class: "progress-void" }),
        ),
        h("span", { class: "run-rounds quiet" }),
      ),
    ),
  );
}

function updateRow(row, run, chosen, now_s) {
  const link = row.firstElementChild;
  set(link, { "aria-current": run.run === chosen ? "page" : null });
  const state = row.querySelector(".run-state");
  if (state.dataset.state !== run.state) {
    state.dataset.state = run.state;
    state.replaceChildren(stateIcon(run.state), run.state);
  }
  setText(row.querySelector(".run-metric"), sayMetric(run));
  setText(row.querySelector(".run-what"), nameRun(run));
  setText(row.querySelector(".run-age"), sayAge(run, now_s));
  setText(row.querySelector(".run-rounds"), `${run.rounds_released} / ${run.rounds_wanted}`);
  drawProgress(row.querySelector(".progress"), run);
  set(link, {
    title: [
      shortId(run.run),
      ...(run.name ? [`${run.task} · ${run.strategy}`] : []),
      `began ${formatDay(run.began_at_s)}`,
      plural(run.clients, "client"),
      plural(run.aggregators, "aggregator"),
    ].join(" · "),
  });
}

/** The run's headline metric: a number alone reads as an accuracy, any other metric gets its name. */
function sayMetric({ headline, metrics }) {
  const value = headline && metrics[headline.name];
  if (typeof value !== "number") return "";
  const { name } = headline;
  return isShare(name) ? formatMetric(name, value, 1) : `${name} ${formatMetric(name, value)}`;
}

/** Released rounds of those wanted, and beside them those that were void. */
export function drawProgress(bar, run) {
  const wanted = Math.max(run.rounds_wanted, run.rounds_released + run.rounds_void, 1);
  bar.children[0].style.width = `${(100 * run.rounds_released) / wanted}%`;
  bar.children[1].style.width = `${(100 * run.rounds_void) / wanted}%`;
}

function sayAge(run, now_s) {
  if (!run) return "";
  const since = run.ended_at_s ?? run.began_at_s;
  return now_s - since > 86400
    ? formatDay(since)
    : now_s - since > 43200
      ? formatClock(since)
      : formatAgo(now_s - since);
}

function keepOneTabStop(list) {
  const links = [...list.querySelectorAll("a")];
  const stop = links.find((link) => link.getAttribute("aria-current")) ?? links[0];
  for (const link of links) set(link, { tabindex: link === stop ? null : "-1" });
}

function moveWithArrows(event) {
  const links = [...event.currentTarget.querySelectorAll("a")];
  const at = links.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 }[event.key];
  if (at < 0 || to === undefined || !links[to]) return;
  event.preventDefault();
  links[to].focus();
  links[to].click();
}
