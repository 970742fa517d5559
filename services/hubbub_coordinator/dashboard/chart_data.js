// What each chart shows: series, a sentence that says the same, and a table. Pure.

import { compareWithDense, kindsOf, measured, payloadOf, predictedOf } from "./account.js";
import {
  formatBits,
  formatBytes,
  formatCount,
  formatDuration,
  formatPercent,
  formatTimes,
  plural,
} from "./format.js";

const BYTES = 8;

/** All charts, in the order in which they stand. */
export const CHARTS = [
  { name: "accuracy", title: "Accuracy", build: chartAccuracy },
  { name: "bytes", title: "Payload per round", build: chartBytes, nearer: "Without FedAvg" },
  { name: "time", title: "Time per round", build: chartTime },
  { name: "union", title: "|V| per round", build: chartUnion },
];

function chartAccuracy({ detail, rounds }, colours) {
  const shown = measured(rounds);
  const x = shown.map((round) => round.round);
  const target = detail.target_accuracy;
  const traces = [
    {
      type: "scatter",
      name: "accuracy",
      x,
      y: shown.map((round) => 100 * round.accuracy),
      mode: markers(x),
      line: { color: colours.accent, width: 2.5 },
      hovertemplate: "%{y:.2f} %",
    },
    {
      type: "scatter",
      name: "loss",
      x,
      y: shown.map((round) => round.loss),
      mode: markers(x),
      yaxis: "y2",
      line: { color: colours.quiet, width: 1.5, dash: "dot" },
      hovertemplate: "%{y:.4f}",
    },
    ...(target === null || x.length === 0
      ? []
      : [
          {
            type: "scatter",
            name: "target",
            x: [x[0], x.at(-1)],
            y: [100 * target, 100 * target],
            mode: "lines",
            line: { color: colours.ink, width: 1, dash: "dash" },
            hovertemplate: "%{y:.1f} %",
          },
        ]),
  ];
  const best = shown.reduce((top, round) => (top && top.accuracy >= round.accuracy ? top : round), null);
  return {
    traces,
    layout: {
      yaxis: { ticksuffix: " %" },
      yaxis2: {
        overlaying: "y",
        side: "right",
        showgrid: false,
        rangemode: "tozero",
        tickmode: "auto",
        nticks: 5,
      },
    },
    summary: best
      ? `From ${formatPercent(shown[0].accuracy)} to ${formatPercent(shown.at(-1).accuracy)} over ` +
        `${plural(shown.length, "round")}; best ${formatPercent(best.accuracy)} in round ${best.round}.`
      : "",
    empty: "The first numbers come with the first released round.",
    table: {
      head: ["Round", "Accuracy", "Loss"],
      body: shown.map((round) => [round.round, formatPercent(round.accuracy), round.loss?.toFixed(4)]),
    },
  };
}

function chartBytes({ detail, rounds, near }, colours) {
  const shown = rounds.filter((round) => payloadOf(round) > 0);
  const x = shown.map((round) => round.round);
  const kinds = kindsOf(shown);
  const voids = shown.map((round) => (round.state === "void" ? "/" : ""));
  const bytes = (bits) => bits / BYTES;
  const traces = [
    ...kinds.map((kind, index) => ({
      type: "bar",
      name: kind,
      x,
      y: shown.map((round) => bytes(round.cost[kind]?.payload_bits ?? 0)),
      customdata: shown.map((round) => formatBits(round.cost[kind]?.payload_bits ?? 0)),
      marker: {
        color: colours.series[index % colours.series.length],
        line: { width: 0 },
        pattern: { shape: voids, fillmode: "overlay", fgcolor: colours.surface, size: 5, solidity: 0.4 },
      },
      hovertemplate: "%{customdata}",
    })),
    ...(near
      ? []
      : [
          line(
            "dense FedAvg",
            x,
            shown.map((round) => bytes(round.fedavg_bits)),
            shown.map((round) => formatBits(round.fedavg_bits)),
            { color: colours.ink, width: 1.5, dash: "dash" },
          ),
        ]),
    {
      type: "scatter",
      name: "formula",
      mode: "markers",
      ...some(shown, predictedOf),
      hovertemplate: "%{customdata}",
      marker: { symbol: "diamond-open", size: 8, color: colours.ink, line: { width: 1.5 } },
    },
  ];
  const { sent, dense, times } = compareWithDense(rounds);
  const exact = shown
    .filter((round) => round.state === "released")
    .every((round) => payloadOf(round) === predictedOf(round));
  return {
    traces,
    layout: { barmode: "stack", yaxis: byteAxis(shown, near), bargap: 0.28 },
    summary: times
      ? `${formatBits(sent)} sent where dense FedAvg sends ${formatBits(dense)}: ${formatTimes(times)} less` +
        `${exact ? `; every released round is what the formula of the ${detail.wire} wire says, to the bit` : ""}.`
      : "",
    empty: "Bytes are counted when a phase is released.",
    table: {
      head: ["Round", ...kinds, "Sum", "Formula", "On the wire", "Dense FedAvg"],
      body: shown.map((round) => [
        round.round,
        ...kinds.map((kind) => formatBits(round.cost[kind]?.payload_bits ?? 0)),
        formatBits(payloadOf(round)),
        formatBits(predictedOf(round)),
        formatBytes(Object.values(round.cost).reduce((total, cost) => total + cost.wire_bytes, 0)),
        formatBits(round.fedavg_bits),
      ]),
    },
  };
}

/** What the coordinator waited for in a released round, by arrival times: clients tell it no durations. */
function splitTime(round) {
  const add = (from, to) => round.phases.reduce((total, phase) => total + phase[to] - phase[from], 0);
  return {
    shares: add("opened_at_s", "closed_at_s"),
    sums: add("closed_at_s", "released_at_s"),
    models: round.ended_at_s - round.phases.at(-1).released_at_s,
  };
}

function chartTime({ rounds }, colours) {
  const shown = rounds.filter((round) => round.state === "released");
  const x = shown.map((round) => round.round);
  const times = shown.map(splitTime);
  const parts = ["shares", "sums", "models"];
  const traces = parts.map((name, index) => ({
    type: "bar",
    name,
    x,
    y: times.map((time) => time[name]),
    customdata: times.map((time) => formatDuration(time[name])),
    marker: { color: colours.series[index], line: { width: 0 } },
    hovertemplate: "%{customdata}",
  }));
  const mean = (name) => times.reduce((total, time) => total + time[name], 0) / times.length;
  const phases = [...new Set(shown.flatMap((round) => round.phases.map((phase) => phase.name)))];
  return {
    traces,
    layout: { barmode: "stack", yaxis: { ticksuffix: " s" }, bargap: 0.28 },
    summary: shown.length
      ? `On average ${formatDuration(mean("shares"))} until all shares were in, ` +
        `${formatDuration(mean("sums"))} until the sums were out ` +
        `and ${formatDuration(mean("models"))} until the models were in place.`
      : "",
    empty: "Times come with the first released round.",
    table: {
      head: ["Round", ...parts, ...phases.map((name) => `${name}, opened to released`)],
      body: shown.map((round, index) => [
        round.round,
        ...parts.map((name) => formatDuration(times[index][name])),
        ...phases.map((name) => sayPhase(round, name)),
      ]),
    },
  };
}

function chartUnion({ detail, rounds }, colours) {
  const shown = rounds.filter((round) => round.union_size !== null);
  const x = shown.map((round) => round.round);
  const last = shown.at(-1);
  return {
    traces: [
      {
        type: "scatter",
        name: "|V|",
        x,
        y: shown.map((round) => round.union_size),
        customdata: shown.map((round) => formatPercent(round.union_size / detail.parameters, 1)),
        mode: markers(x),
        fill: "tozeroy",
        fillcolor: colours.soft,
        line: { color: colours.accent, width: 2.5 },
        hovertemplate: "%{y:,} (%{customdata})",
      },
    ],
    layout: { yaxis: { rangemode: "tozero", tickformat: ",", nticks: 5 } },
    summary: last
      ? `${formatCount(last.union_size)} of ${formatCount(detail.parameters)} indices in round ${last.round}, ` +
        `${formatPercent(last.union_size / detail.parameters, 1)}.`
      : "",
    empty: "|V| is known once a union is released.",
    table: {
      head: ["Round", "|V|", "Of all indices"],
      body: shown.map((round) => [
        round.round,
        formatCount(round.union_size),
        formatPercent(round.union_size / detail.parameters, 1),
      ]),
    },
  };
}

function line(name, x, y, customdata, style) {
  return {
    type: "scatter",
    name,
    x,
    y,
    customdata,
    mode: x.length === 1 ? "markers" : "lines",
    line: style,
    marker: { color: style.color, symbol: "line-ew-open", size: 14 },
    hovertemplate: "%{customdata}",
  };
}

/** Points only where there is something. */
function some(rounds, bitsOf) {
  const there = rounds.filter((round) => bitsOf(round) > 0);
  return {
    x: there.map((round) => round.round),
    y: there.map((round) => bitsOf(round) / BYTES),
    customdata: there.map((round) => formatBits(bitsOf(round))),
  };
}

function markers(x) {
  return x.length <= 30 ? "lines+markers" : "lines";
}

/** Ticks at whole multiples of a power of two, since KB and MB are. */
function byteAxis(rounds, near) {
  const top = Math.max(
    1,
    ...rounds.map((round) => Math.max(near ? 0 : round.fedavg_bits, payloadOf(round)) / BYTES),
  );
  const step = 2 ** Math.ceil(Math.log2(top / 5));
  const tickvals = Array.from({ length: 6 }, (_, index) => index * step).filter((value) => value <= 1.1 * top);
  return {
    tickvals,
    ticktext: tickvals.map((value) => (value === 0 ? "0" : formatBytes(value).replace(/\.?0+(?=\s)/, ""))),
    rangemode: "tozero",
  };
}

function sayPhase(round, name) {
  const phase = round.phases.find((each) => each.name === name);
  return phase?.released_at_s ? formatDuration(phase.released_at_s - phase.opened_at_s) : null;
}
