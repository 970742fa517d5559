// Data of the charts: series, a sentence that says the same, and a table. Pure.

import { compareWithFedavg, kindsOf, measured, payloadOf, predictedOf } from "./account.js";
import {
  formatBits,
  formatBytes,
  formatCount,
  formatDuration,
  formatMetric,
  formatPercent,
  formatTimes,
  isShare,
  labelMetric,
  nameRun,
  plural,
  shortId,
} from "./format.js";

const BYTES = 8;
const SCORES = "scores";
const NOT_SCORED = "This run sums no scores.";

/** All charts, in the order of the page; the first gets its title from the run's metric. */
export const CHARTS = [
  { name: "metric", title: "Scores", place: "charts", build: chartMetric },
  { name: "bytes", title: "Bytes per round", place: "charts", build: chartBytes, nearer: "Without FedAvg" },
  { name: "sent", title: "Bytes over time", place: "charts-more", build: chartSent },
  { name: "time", title: "Time per round", place: "charts-more", build: chartTime },
  { name: "union", title: "|V| per round", place: "charts-more", build: chartUnion },
];

/** Name of the run that is drawn beside the chosen one. */
function nameOther({ detail }) {
  return `${nameRun(detail)} ${shortId(detail.run)}`;
}

function otherLine(overlay, x, y, customdata, colours) {
  return {
    ...line(nameOther(overlay), x, y, customdata, { color: colours.series[4], width: 2, dash: "dot" }),
    mode: markers(x),
    marker: { color: colours.series[4], size: 6 },
  };
}

function chartMetric({ detail, rounds, overlay }, colours) {
  const { headline, target } = detail;
  if (!headline) return { traces: [], layout: {}, summary: "", empty: NOT_SCORED, table: { head: [], body: [] } };
  const { name, higher_is_better: rises } = headline;
  const names = detail.manifest.metrics.map((metric) => metric.name);
  const shown = measured(rounds, name);
  const x = shown.map((round) => round.round);
  const say = (round) => formatMetric(name, round.metrics[name]);
  const scale = isShare(name) ? 100 : 1;
  const others = overlay ? measured(overlay.rounds, name) : [];
  const traces = [
    ...(others.length > 0
      ? [
          otherLine(
            overlay,
            others.map((round) => round.round),
            others.map((round) => scale * round.metrics[name]),
            others.map(say),
            colours,
          ),
        ]
      : []),
    {
      type: "scatter",
      name,
      x,
      y: shown.map((round) => scale * round.metrics[name]),
      customdata: shown.map(say),
      mode: markers(x),
      line: { color: colours.accent, width: 2.5 },
      hovertemplate: "%{customdata}",
    },
    // The next metric is beside it, on an axis of its own.
    ...names.slice(1, 2).map((second) => ({
      type: "scatter",
      name: second,
      x,
      y: shown.map((round) => round.metrics[second] ?? null),
      customdata: shown.map((round) => formatMetric(second, round.metrics[second])),
      mode: markers(x),
      yaxis: "y2",
      line: { color: colours.quiet, width: 1.5, dash: "dot" },
      hovertemplate: "%{customdata}",
    })),
    ...(target === null || x.length === 0
      ? []
      : [
          {
            type: "scatter",
            name: "target",
            x: [x[0], x.at(-1)],
            y: [scale * target, scale * target],
            customdata: [formatMetric(name, target, 1), formatMetric(name, target, 1)],
            mode: "lines",
            line: { color: colours.ink, width: 1, dash: "dash" },
            hovertemplate: "%{customdata}",
          },
        ]),
  ];
  const isBetter = (a, b) => (rises ? a.metrics[name] >= b.metrics[name] : a.metrics[name] <= b.metrics[name]);
  const best = shown.reduce((top, round) => (top && isBetter(top, round) ? top : round), null);
  return {
    title: labelMetric(name),
    traces,
    layout: {
      yaxis: isShare(name) ? { ticksuffix: " %" } : {},
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
      ? `From ${say(shown[0])} to ${say(shown.at(-1))} over ${plural(shown.length, "round")}; ` +
        `best ${say(best)} in round ${best.round}.${sayOther(overlay, others, say)}`
      : "",
    empty: "The first numbers come with the first scored round.",
    table: {
      head: ["Round", ...names.map(labelMetric), ...(overlay ? [`${labelMetric(name)}, ${nameOther(overlay)}`] : [])],
      body: numbersOf(shown, others).map((number) => [
        number,
        ...names.map((each) => formatMetric(each, find(shown, number)?.metrics[each])),
        ...(overlay ? [formatMetric(name, find(others, number)?.metrics[name])] : []),
      ]),
    },
  };
}

function sayOther(overlay, others, say) {
  if (!overlay) return "";
  const other = nameOther(overlay);
  if (others.length === 0) return ` ${other} has no such scores.`;
  return ` ${other}: ${say(others.at(-1))} after ${plural(others.length, "round")}.`;
}

function numbersOf(...runs) {
  return [...new Set(runs.flat().map((round) => round.round))].sort((a, b) => a - b);
}

function find(rounds, number) {
  return rounds.find((round) => round.round === number);
}

/** All bytes of a run since its beginning, at the end of each round, and FedAvg's for the same rounds. */
function addUp({ detail, rounds }) {
  let sent = 0;
  let fedavg = 0;
  return rounds
    .filter((round) => round.ended_at_s !== null)
    .map((round) => {
      sent += round.all_wire_bytes;
      if (round.state === "released") fedavg += round.fedavg_wire_bytes;
      return { round: round.round, after_s: round.ended_at_s - detail.began_at_s, sent, fedavg };
    });
}

const UNITS_OF_TIME = [
  { name: "h", seconds: 3600 },
  { name: "min", seconds: 60 },
  { name: "s", seconds: 1 },
];

function chartSent({ detail, rounds, overlay }, colours) {
  const own = addUp({ detail, rounds });
  const other = overlay ? addUp(overlay) : [];
  const longest_s = Math.max(1, ...[...own, ...other].map((point) => point.after_s));
  const unit = UNITS_OF_TIME.find(({ seconds }) => longest_s >= 2 * seconds) ?? UNITS_OF_TIME.at(-1);
  const timesOf = (points) => points.map((point) => point.after_s / unit.seconds);
  const x = timesOf(own);
  const draw = (name, field, style) =>
    line(
      name,
      x,
      own.map((point) => point[field]),
      own.map((point) => `${formatBytes(point[field])}, round ${point.round}`),
      style,
    );
  const traces = [
    {
      ...draw("all messages", "sent", { color: colours.accent, width: 2.5 }),
      mode: markers(x),
      marker: { color: colours.accent, size: 6 },
    },
    draw("uncompressed FedAvg", "fedavg", { color: colours.ink, width: 1.5, dash: "dash" }),
    ...(other.length > 0
      ? [
          otherLine(
            overlay,
            timesOf(other),
            other.map((point) => point.sent),
            other.map((point) => `${formatBytes(point.sent)}, round ${point.round}`),
            colours,
          ),
        ]
      : []),
  ];
  const last = own.at(-1);
  const lastOther = other.at(-1);
  return {
    traces,
    layout: {
      xaxis: {
        range: [0, (1.03 * longest_s) / unit.seconds],
        dtick: null,
        nticks: 7,
        tickformat: "",
        ticksuffix: ` ${unit.name}`,
        unifiedhovertitle: { text: "after %{x:.1f}" },
      },
      yaxis: bytesUpTo(Math.max(1, ...own.map((point) => Math.max(point.sent, point.fedavg)), lastOther?.sent ?? 0)),
    },
    summary: last
      ? `${formatBytes(last.sent)} after ${formatDuration(last.after_s)}` +
        `${lastOther ? `; ${nameOther(overlay)}: ${formatBytes(lastOther.sent)} after ${formatDuration(lastOther.after_s)}` : ""}.`
      : "",
    empty: "The first bytes come with the first round.",
    table: {
      head: [
        "Round",
        "After",
        "All messages",
        "FedAvg's",
        ...(overlay ? [`After, ${nameOther(overlay)}`, `All messages, ${nameOther(overlay)}`] : []),
      ],
      body: numbersOf(own, other).map((number) => {
        const [mine, its] = [find(own, number), find(other, number)];
        return [
          number,
          formatDuration(mine?.after_s),
          formatBytes(mine?.sent),
          formatBytes(mine?.fedavg),
          ...(overlay ? [formatDuration(its?.after_s), formatBytes(its?.sent)] : []),
        ];
      }),
    },
  };
}

function chartBytes({ detail, rounds, near }, colours) {
  const shown = rounds.filter((round) => payloadOf(round) > 0);
  const x = shown.map((round) => round.round);
  const kinds = kindsOf(shown);
  const voids = shown.map((round) => (round.state === "void" ? "/" : ""));
  const bar = (color) => ({
    color,
    line: { width: 0 },
    pattern: { shape: voids, fillmode: "overlay", fgcolor: colours.surface, size: 5, solidity: 0.4 },
  });
  const bytes = (bits) => bits / BYTES;
  const traces = [
    ...kinds.map((kind, index) => ({
      type: "bar",
      name: kind,
      x,
      y: shown.map((round) => bytes(round.cost[kind]?.payload_bits ?? 0)),
      customdata: shown.map((round) => formatBits(round.cost[kind]?.payload_bits ?? 0)),
      marker: bar(colours.series[index % colours.series.length]),
      hovertemplate: "%{customdata}",
    })),
    {
      type: "bar",
      name: "beside payload",
      x,
      y: shown.map(besidePayload),
      customdata: shown.map((round) => formatBytes(besidePayload(round))),
      marker: bar(colours.pale),
      hovertemplate: "%{customdata}",
    },
    ...(near
      ? []
      : [
          line(
            "uncompressed FedAvg",
            x,
            shown.map((round) => round.fedavg_wire_bytes),
            shown.map((round) => formatBytes(round.fedavg_wire_bytes)),
            { color: colours.ink, width: 1.5, dash: "dash" },
          ),
        ]),
    {
      type: "scatter",
      name: "payload by formula",
      mode: "markers",
      ...some(shown, predictedOf),
      hovertemplate: "%{customdata}",
      marker: { symbol: "diamond-open", size: 8, color: colours.ink, line: { width: 1.5 } },
    },
  ];
  const exact = shown
    .filter((round) => round.state === "released")
    .every((round) => payloadOf(round) === predictedOf(round));
  return {
    traces,
    layout: { barmode: "stack", yaxis: byteAxis(shown, near), bargap: 0.28 },
    summary: sayComparison(detail, compareWithFedavg(rounds), exact),
    empty: "Bytes are counted when a phase is released.",
    table: {
      head: ["Round", ...kinds, "Payload", "Formula", "All messages", "FedAvg's"],
      body: shown.map((round) => [
        round.round,
        ...kinds.map((kind) => formatBits(round.cost[kind]?.payload_bits ?? 0)),
        formatBits(payloadOf(round)),
        formatBits(predictedOf(round)),
        formatBytes(round.all_wire_bytes),
        formatBytes(round.fedavg_wire_bytes),
      ]),
    },
  };
}

/** Bytes of a round's headers, signatures, seals, orders, receipts and reports. */
function besidePayload(round) {
  return Math.max(0, round.all_wire_bytes - payloadOf(round) / BYTES);
}

/** Compare all bytes with those of uncompressed FedAvg, and then payload. */
function sayComparison(detail, { wire, payload }, exact) {
  if (wire.times === null) return "";
  const isLess = wire.times > 1;
  const verdict = detail.no_gain && (isLess ? `: ${formatTimes(wire.times)} less` : `. ${detail.no_gain}`);
  return (
    `All messages of these rounds take ${formatBytes(wire.sent)}, and those of uncompressed FedAvg would take ` +
    `${formatBytes(wire.fedavg)}${verdict}. ` +
    `Payload alone is ${formatBytes(payload.sent)}, and FedAvg's ${formatBytes(payload.fedavg)}` +
    `${exact ? `; in every released round it is what the formula of the ${detail.wire} wire says, to the bit` : ""}.`
  );
}

/** The phases of a round in which updates are summed. How long scores take is not shown: it tells of test sets. */
function learningPhases(round) {
  return round.phases.filter((phase) => phase.name !== SCORES);
}

/** The coordinator's waiting times in a released round, by arrival times: clients report no durations. */
function splitTime(round) {
  const phases = learningPhases(round);
  const add = (from, to) => phases.reduce((total, phase) => total + phase[to] - phase[from], 0);
  const applied_at_s = round.phases.find((phase) => phase.name === SCORES)?.opened_at_s ?? round.ended_at_s;
  return {
    shares: add("opened_at_s", "closed_at_s"),
    sums: add("closed_at_s", "released_at_s"),
    models: applied_at_s - phases.at(-1).released_at_s,
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
  const phases = [...new Set(shown.flatMap((round) => learningPhases(round).map((phase) => phase.name)))];
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

/** Keep only points with a value. */
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

function byteAxis(rounds, near) {
  return bytesUpTo(
    Math.max(1, ...rounds.map((round) => Math.max(near ? 0 : round.fedavg_wire_bytes, round.all_wire_bytes))),
  );
}

/** Ticks at whole multiples of a power of two, since KB and MB are. */
function bytesUpTo(top) {
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
