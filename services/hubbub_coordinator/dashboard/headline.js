// The chosen run in a few large numbers, and the parties that it waits for.

import { compareWithFedavg, measured, sumOf } from "./account.js";
import { byId, h, set, setText, show } from "./dom.js";
import {
  formatAge,
  formatBits,
  formatBytes,
  formatClock,
  formatCount,
  formatDay,
  formatDuration,
  formatElapsed,
  formatMetric,
  formatPercent,
  formatTimes,
  isShare,
  labelMetric,
  listNames,
  nameRun,
  NOTHING,
  plural,
  shortId,
} from "./format.js";
import { stateIcon } from "./icons.js";
import { usualWait } from "./lateness.js";
import { ACTIVE, drawProgress } from "./runs.js";

const FIGURES = [
  { name: "metric", label: "Score", say: sayMetric },
  { name: "bytes", label: "Sent so far", say: sayBytes },
  { name: "round", label: "Round", say: sayRound },
  { name: "union", label: "Union |V|", say: sayUnion },
  { name: "time", label: "Time", say: sayTime },
];

const ROUND = FIGURES.findIndex(({ name }) => name === "round");

/** Keep title, figures and the waiting line in step with the store. */
export function mountHeadline(store, { nowS }) {
  const cells = FIGURES.map((figure) =>
    h(
      "div",
      { class: `figure figure-${figure.name}` },
      h("dt", {}, figure.label),
      h("dd", { class: "figure-value" }),
      h("dd", { class: "figure-note" }),
    ),
  );
  cells[ROUND].append(
    h(
      "dd",
      { class: "figure-bar" },
      h(
        "span",
        { class: "progress", "aria-hidden": "true" },
        h("span", { class: "progress-done" }),
        h("span", { class: "progress-void" }),
      ),
    ),
  );
  byId("headline").append(...cells);

  store.on(["detail", "rounds"], ({ detail, rounds }) => {
    if (!detail) return;
    showTitle(detail);
    showFigures(cells, detail, rounds, nowS());
    drawProgress(cells[ROUND].querySelector(".progress"), detail);
    showWaiting(detail, rounds, nowS());
  });
  store.on(["tick"], ({ detail, rounds }) => {
    if (!detail || !ACTIVE.includes(detail.state)) return;
    showFigures(cells, detail, rounds, nowS());
    showWaiting(detail, rounds, nowS());
  });
}

function showTitle(run) {
  setText(byId("run-title"), nameRun(run));
  show(byId("run-remark"), run.note !== "");
  setText(byId("run-remark"), run.note);
  const parties = [
    ...(run.name ? [`${run.task} · ${run.strategy}`] : []),
    ...(run.block > 1 ? [`blocks of ${run.block}`] : []),
    `${run.wire} wire`,
    plural(run.clients, "client"),
    plural(run.aggregators, "aggregator"),
    plural(run.parameters, "parameter"),
  ];
  const state = run.pausing ? pausing(run) : run.state;
  byId("run-sub").replaceChildren(
    h("span", { class: `state-word is-${run.state}` }, stateIcon(run.state), state),
    h("span", {}, parties.join(", ")),
    h("span", {}, `began ${formatDay(run.began_at_s)}`),
    h("code", { title: run.run }, shortId(run.run)),
  );
  showWarning(byId("run-warning"), "Warning", run.warning);
  showWarning(byId("run-stalled"), "Stalled", run.stalled);
  const reason = byId("reason");
  show(reason, run.reason !== "" && run.state !== "completed");
  set(reason, { class: `reason is-${run.state}` });
  setText(reason, `${{ failed: "It failed", cancelled: "It was cancelled" }[run.state] ?? "Note"}: ${run.reason}`);
}

function showWarning(line, label, sentence) {
  show(line, sentence !== "");
  setText(line, `! ${label}: ${sentence}.`);
}

function pausing(run) {
  return run.round > 0 ? "pausing after this round" : `${run.state}, pausing before the first round`;
}

function showFigures(cells, run, rounds, now_s) {
  FIGURES.forEach((figure, index) => {
    const [value, note, label] = figure.say(run, rounds, now_s);
    setText(cells[index].querySelector("dt"), label ?? figure.label);
    const shown = cells[index].querySelector(".figure-value");
    if (shown.dataset.text !== value.join(" ")) {
      shown.dataset.text = value.join(" ");
      shown.replaceChildren(value[0], value[1] ? h("small", {}, ` ${value[1]}`) : "");
    }
    // A sign stays with its number when the line is broken.
    setText(cells[index].querySelector(".figure-note"), note.replace(/ (?=[%×])/g, "\u00a0"));
  });
}

function sayRound(run) {
  const voids = run.rounds_void > 0 ? `, ${run.rounds_void} void` : "";
  return [
    [formatCount(run.round), `of ${formatCount(run.rounds_wanted)}`],
    `${formatCount(run.rounds_released)} released${voids}`,
  ];
}

function sayMetric(run, rounds) {
  if (!run.headline) return [[NOTHING], "this run sums no scores"];
  const { name } = run.headline;
  const value = run.metrics[name];
  if (value === undefined) return [[NOTHING], "after the first scored round", labelMetric(name)];
  const [before, last] = measured(rounds, name).slice(-2);
  const trend = last ? sayChange(name, last.metrics[name] - before.metrics[name]) : "";
  const target = run.target === null ? "" : `target ${formatMetric(name, run.target, 1)}`;
  return [
    split(formatMetric(name, value)),
    [trend, target].filter(Boolean).join(", ") || "summed over the clients",
    labelMetric(name),
  ];
}

function sayChange(name, change) {
  const size = Math.abs(change);
  const said = isShare(name) ? `${(100 * size).toFixed(2)} points` : formatMetric(name, size);
  return `${change >= 0 ? "+" : "−"}${said}`;
}

/** All bytes on the wire, beside those of uncompressed FedAvg; payload is a remark. */
function sayBytes(run, rounds) {
  const sent = split(formatBytes(sumOf(rounds, "all_wire_bytes")));
  return [sent, `${sayGain(run, compareWithFedavg(rounds).wire)}; payload ${formatBits(run.payload_bits)}`];
}

function sayGain(run, { times }) {
  if (times === null) return "nothing to compare yet";
  if (run.no_gain === "") return "this is uncompressed FedAvg";
  return times > 1 ? `${formatTimes(times)} less than uncompressed FedAvg` : run.no_gain;
}

function sayUnion(run, rounds) {
  const last = rounds.findLast((round) => round.union_size !== null);
  if (!last) return [[NOTHING], `of ${formatCount(run.parameters)} indices`];
  return [[formatCount(last.union_size)], `${formatPercent(last.union_size / run.parameters, 1)} of all indices`];
}

function sayTime(run, _rounds, now_s) {
  if (run.ended_at_s !== null)
    return [[formatDuration(run.ended_at_s - run.began_at_s)], `ended ${formatDay(run.ended_at_s)}`];
  if (run.state === "paused") return [["paused"], `for ${formatElapsed(now_s - run.paused_since_s)} now`];
  const since = `for ${formatElapsed(now_s - run.began_at_s)} now`;
  if (run.remaining_s === null) return [[NOTHING], `${since}, no estimate yet`];
  return [
    split(`≈ ${formatAge(Math.max(10, run.remaining_s))}`),
    `left, until ${formatClock(now_s + run.remaining_s)}`,
  ];
}

function split(text) {
  const at = text.lastIndexOf(" ");
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}

function showWaiting(run, rounds, now_s) {
  const line = byId("waiting");
  const waits = run.waiting_for.length > 0;
  show(line, waits || run.state === "paused");
  if (!waits)
    return setText(line, run.state === "paused" ? "Paused. No round is open until somebody resumes it." : "");
  const waited_s = now_s - (run.waiting_since_s ?? now_s);
  const late = waited_s > usualWait(rounds, run);
  set(line, { class: `waiting${late ? " is-late" : ""}` });
  line.replaceChildren(
    h("span", { class: "waiting-mark", "aria-hidden": "true" }, late ? "!" : ""),
    h(
      "span",
      {},
      late ? "Late: waiting for " : "Waiting for ",
      h("strong", {}, listNames(run.waiting_for)),
      ` ${run.waiting_to}`,
    ),
    h("span", { class: "waiting-time" }, formatElapsed(waited_s)),
  );
}
