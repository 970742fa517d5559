// Clients by round, as a table of classes: on time, late, missing. No times: they would say something of data.

import { byId, h, setText, show } from "./dom.js";
import { plural } from "./format.js";

const SHOWN = 40;
const EVERY = 5;
const MARKS = { "on-time": "", late: "!", missing: "×" };
const WORDS = { "on-time": "on time", late: "late", missing: "missing" };

/** Keep the table in step with the store; clients that are late or missing most often come first. */
export function mountHeatMap(store) {
  let drawn = "";
  store.on(["detail", "rounds"], ({ detail, rounds }) => {
    if (!detail) return;
    const recent = rounds.slice(-SHOWN);
    const key = JSON.stringify([detail.run, recent.map(({ round, arrivals }) => [round, arrivals])]);
    if (key === drawn) return;
    drawn = key;
    const clients = rank(detail, recent);
    const hasData = recent.some((round) => Object.keys(round.arrivals).length > 0);
    show(byId("clients-scroll"), hasData);
    show(byId("clients-legend"), hasData);
    setText(byId("clients-note"), hasData ? summarise(clients, recent) : "Rows come with the first shares.");
    byId("clients-scroll").replaceChildren(drawTable(clients, recent));
  });
}

/** Clients with how often each was late or missing, the slowest first. */
function rank(detail, rounds) {
  const count = (name, arrival) => rounds.filter((round) => round.arrivals[name] === arrival).length;
  return detail.participants
    .filter((party) => party.role === "client")
    .map(({ name }) => ({ name, late: count(name, "late"), missing: count(name, "missing") }))
    .sort(
      (a, b) =>
        b.missing - a.missing || b.late - a.late || a.name.localeCompare(b.name, "en", { numeric: true }),
    );
}

function summarise(clients, rounds) {
  const slow = clients.filter(({ late, missing }) => late + missing > 0);
  const over = plural(rounds.length, "round");
  if (slow.length === 0) return `Everybody was on time in the last ${over}.`;
  const [{ name, late, missing }] = slow;
  return `Slowest first. ${name} was late in ${late} and missing in ${missing} of the last ${over}.`;
}

function drawTable(clients, rounds) {
  return h(
    "table",
    { class: "heat" },
    h("caption", { class: "visually-hidden" }, "Clients by round: on time, late or missing"),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Client")),
        rounds.map(({ round }, index) =>
          h(
            "th",
            { scope: "col" },
            index === 0 || round % EVERY === 0
              ? String(round)
              : h("span", { class: "visually-hidden" }, String(round)),
          ),
        ),
      ),
    ),
    h(
      "tbody",
      {},
      clients.map(({ name }) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, name),
          rounds.map((round) => drawCell(name, round)),
        ),
      ),
    ),
  );
}

function drawCell(name, { round, arrivals }) {
  const arrival = arrivals[name];
  if (!arrival) return h("td", {}, h("span", { class: "visually-hidden" }, "not yet"));
  return h(
    "td",
    { title: `${name}, round ${round}: ${WORDS[arrival]}` },
    h("span", { class: `heat-cell is-${arrival}`, "aria-hidden": "true" }, MARKS[arrival]),
    h("span", { class: "visually-hidden" }, WORDS[arrival]),
  );
}
