// Costs of the run by party, and under other strategies.

import { sum } from "./account.js";
import { byId, h, table } from "./dom.js";
import { formatBits, formatBytes, formatTimes, plural } from "./format.js";

const ALL = "everything";
const WAYS = ["up", "across", "down"];

/** Keep both tables in step with the store. */
export function mountCosts(store) {
  const choice = byId("parties-as");
  choice.addEventListener("change", () => showParties(store.state.cost, choice.value));
  store.on(["cost", "about"], ({ cost, about, detail }) => {
    showOthers(cost, detail, about);
    offerKinds(choice, cost);
    showParties(cost, choice.value || ALL);
  });
}

function showOthers(cost, detail, about) {
  const root = byId("others");
  const others = Object.entries(cost?.other_strategies ?? {}).map(([name, { total_bits: bits }]) => ({
    name,
    bits,
  }));
  const aside = byId("others-aside");
  const rounds = cost?.rounds_released ?? 0;
  aside.textContent = rounds
    ? `payload alone, by the formulas of the ${detail?.wire} wire, for the same ${plural(rounds, "released round")}, ` +
      "the same |V| and the same parties"
    : "";
  if (!detail || rounds === 0)
    return root.replaceChildren(h("p", { class: "none" }, "The comparison begins with the first released round."));
  const own = others.find((other) => other.name === detail.strategy)?.bits ?? 0;
  const most = Math.max(...others.map((other) => other.bits));
  const reveals = new Map((about?.strategies ?? []).map((strategy) => [strategy.name, strategy.reveals]));
  root.replaceChildren(
    h(
      "table",
      { class: "data bars" },
      h("caption", { class: "visually-hidden" }, "Payload that each strategy would have sent"),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col" }, "Strategy"),
          h("th", { scope: "col" }, "Payload"),
          h("th", { scope: "col", class: "number" }, "Bytes"),
          h("th", { scope: "col", class: "number" }, "Against this run"),
        ),
      ),
      h(
        "tbody",
        {},
        others
          .toSorted((a, b) => a.bits - b.bits)
          .map((other) => otherRow(other, detail.strategy, own, most, reveals.get(other.name) ?? "")),
      ),
    ),
  );
}

function otherRow({ name, bits }, ownName, own, most, reveals) {
  const fill = h("span", { class: "bar-fill" });
  fill.style.width = `${(100 * bits) / most}%`;
  const isOwn = name === ownName;
  return h(
    "tr",
    { class: isOwn ? "is-own" : null },
    h(
      "th",
      { scope: "row" },
      name,
      reveals ? h("small", {}, " not private") : "",
      isOwn ? h("small", {}, " this run") : "",
    ),
    h("td", { class: "bar-cell" }, h("span", { class: "bar-track", "aria-hidden": "true" }, fill)),
    h("td", { class: "number" }, formatBits(bits)),
    h("td", { class: "number" }, isOwn || own === 0 ? "–" : formatTimes(bits / own)),
  );
}

function offerKinds(choice, cost) {
  const kinds = [ALL, ...new Set((cost?.total_by_party ?? []).map((row) => row.counts_as))];
  if ([...choice.options].map((option) => option.value).join() === kinds.join()) return;
  const before = choice.value;
  choice.replaceChildren(...kinds.map((kind) => h("option", { value: kind }, kind)));
  choice.value = kinds.includes(before) ? before : ALL;
}

function showParties(cost, kind) {
  const rows = (cost?.total_by_party ?? []).filter((row) => kind === ALL || row.counts_as === kind);
  const root = byId("parties-cost");
  if (rows.length === 0) return root.replaceChildren(h("p", { class: "none" }, "Nothing has been sent yet."));
  const parties = groupByParty(rows);
  // Nothing goes from aggregator to aggregator on the paper's wire, nor where nothing is secret.
  const ways = WAYS.filter((way) => way !== "across" || cost.total_by_party.some((row) => row.direction === way));
  const line = (name, own) => [
    name,
    ...ways.map((direction) => {
      const there = own.filter((row) => row.direction === direction);
      return h(
        "span",
        { class: "two-lines" },
        formatBytes(sum(there.map((row) => row.wire_bytes))),
        h("small", {}, formatBits(sum(there.map((row) => row.payload_bits))), payloadWord()),
      );
    }),
  ];
  const body = [...parties]
    .sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }))
    .map(([name, own]) => line(name, own));
  const drawn = table(
    "Payload and wire bytes by party and direction",
    ["Party", ...ways.map(capital)],
    [...body, line("All", rows)],
  );
  drawn.tBodies[0].lastElementChild.classList.add("total");
  root.replaceChildren(
    h(
      "div",
      { class: "scroll", role: "region", "aria-label": "Traffic by party, as a table", tabindex: "0" },
      drawn,
    ),
  );
}

/** The unit of the second line of a cell, which the heading says for all that can see it. */
function payloadWord() {
  return h("span", { class: "visually-hidden" }, " of payload");
}

function capital(word) {
  return word[0].toUpperCase() + word.slice(1);
}

function groupByParty(rows) {
  const parties = new Map();
  for (const row of rows) {
    if (!parties.has(row.party)) parties.set(row.party, []);
    parties.get(row.party).push(row);
  }
  return parties;
}
