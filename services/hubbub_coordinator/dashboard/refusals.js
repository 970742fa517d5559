// Refusals of the chosen run by party: how many, and the last one.

import { byId, show, table } from "./dom.js";

export const REFUSALS = ["party-refused", "set-refused", "order-declined", "party-failed"];

/** The table; `fill` takes past events, `add` new ones. */
export function mountRefusals() {
  let events = [];

  function redraw() {
    const parties = new Map();
    for (const event of events) {
      const { count = 0 } = parties.get(event.party) ?? {};
      parties.set(event.party, { count: count + 1, last: event.text });
    }
    show(byId("refusals-card"), parties.size > 0);
    const rows = [...parties].sort(([, a], [, b]) => b.count - a.count);
    byId("refusals").replaceChildren(
      table(
        "Refusals by party",
        ["Party", "Refusals", "The last one"],
        rows.map(([party, { count, last }]) => [party, count, last]),
      ),
    );
  }

  return {
    /** Forget all, for another run. */
    clear() {
      events = [];
      redraw();
    },
    /** Take past events; those that came while they were read stay. */
    fill(known) {
      const last = known.at(-1)?.id ?? -1;
      events = [...known, ...events.filter((event) => event.id > last)];
      redraw();
    },
    /** Take an event of the run, if it is a refusal. */
    add(event) {
      if (!REFUSALS.includes(event.kind)) return;
      events = [...events, event];
      redraw();
    },
  };
}
