// The event log of the chosen run.

import { byId, h, reconcile, set, setText, show } from "./dom.js";
import { formatClock, plural } from "./format.js";
import { keepTaste, readTaste } from "./session.js";

const KEPT = 2000;
const SHOWN = 400;
const PROBLEMS = new Set([
  "party-refused",
  "set-refused",
  "update-dropped",
  "round-void",
  "round-contradicted",
  "party-failed",
  "run-stalled",
  "run-failed",
  "deadline-passed",
  "order-declined",
]);
const KINDS = [
  "run-submitted",
  "party-joined",
  "party-refused",
  "party-ready",
  "keys-sent",
  "round-opened",
  "share-set-delivered",
  "set-refused",
  "phase-closed",
  "sum-released",
  "phase-opened",
  "update-applied",
  "update-dropped",
  "round-released",
  "round-void",
  "round-contradicted",
  "party-failed",
  "pause-requested",
  "run-paused",
  "run-resumed",
  "run-stalled",
  "run-completed",
  "run-failed",
  "run-cancelled",
  "deadline-passed",
  "order-declined",
];

/** A log that follows the run; `add` takes events as they come. */
export function mountLog(store) {
  const parts = {
    text: byId("log-text"),
    kind: byId("log-kind"),
    order: byId("log-order"),
    follow: byId("log-follow"),
    box: byId("log"),
    lines: byId("log-lines"),
  };
  let events = [];
  let frozenAt = null;

  parts.kind.append(
    h("option", { value: "" }, "All kinds"),
    h("option", { value: "problems" }, "Problems"),
    h("hr"),
    ...KINDS.map((kind) => h("option", { value: kind }, sayKind(kind))),
  );
  parts.order.value = readTaste("log-order", "newest");

  function redraw() {
    const seen = frozenAt === null ? events : events.slice(0, frozenAt);
    const wanted = seen.filter((event) => matches(event, parts.text.value, parts.kind.value));
    const newest = parts.order.value === "newest";
    const recent = wanted.slice(-SHOWN);
    reconcile(parts.lines, newest ? recent.toReversed() : recent, (event) => event.id, makeLine);
    showCounts(wanted.length, seen.length);
    keepUp();
  }

  function keepUp() {
    if (frozenAt === null) parts.box.scrollTop = parts.order.value === "newest" ? 0 : parts.box.scrollHeight;
  }

  function showCounts(wanted, seen) {
    const waiting = events.length - seen;
    setText(byId("log-count"), wanted === seen ? plural(seen, "event") : `${wanted} of ${plural(seen, "event")}`);
    setText(parts.follow, frozenAt === null ? "Following" : waiting > 0 ? `Paused, ${waiting} new` : "Paused");
    set(parts.follow, { "aria-pressed": String(frozenAt === null) });
    show(byId("log-none"), wanted === 0);
    setText(byId("log-none"), seen === 0 ? "Nothing has happened yet." : "No event is like that.");
  }

  function follow(yes) {
    frozenAt = yes ? null : events.length;
    redraw();
  }

  // It has no size before the run is shown, so it cannot be scrolled then.
  new ResizeObserver(keepUp).observe(parts.box);
  parts.text.addEventListener("input", redraw);
  parts.kind.addEventListener("change", redraw);
  parts.order.addEventListener("change", () => {
    keepTaste("log-order", parts.order.value);
    redraw();
  });
  parts.follow.addEventListener("click", () => follow(frozenAt !== null));
  parts.box.addEventListener("wheel", () => frozenAt === null && isAwayFromNewest(parts) && follow(false), {
    passive: true,
  });

  return {
    /** Clear the log, for another run. */
    clear() {
      events = [];
      frozenAt = null;
      redraw();
    },
    /** Add past events; events that came while they were being read stay. */
    fill(known) {
      const last = known.at(-1)?.id ?? -1;
      events = [...known, ...events.filter((event) => event.id > last)].slice(-KEPT);
      redraw();
    },
    /** Add new events; known ones are left out. */
    add(fresh) {
      const last = events.at(-1)?.id ?? -1;
      const added = fresh.filter((event) => event.run === store.state.chosen && event.id > last);
      if (added.length === 0) return;
      const dropped = Math.max(0, events.length + added.length - KEPT);
      events = [...events, ...added].slice(-KEPT);
      if (frozenAt !== null) frozenAt = Math.max(0, frozenAt - dropped);
      redraw();
    },
  };
}

/** Return whether an event needs attention. */
export function isProblem(event) {
  return PROBLEMS.has(event.kind);
}

function isAwayFromNewest({ box, order }) {
  return order.value === "newest" ? box.scrollTop > 40 : box.scrollHeight - box.scrollTop - box.clientHeight > 40;
}

function matches(event, text, kind) {
  if (kind === "problems" ? !isProblem(event) : kind !== "" && event.kind !== kind) return false;
  const hay = `${event.kind} ${event.party} ${event.phase} ${event.text} round ${event.round}`.toLowerCase();
  return text
    .toLowerCase()
    .split(/\s+/)
    .every((word) => hay.includes(word));
}

function makeLine(event) {
  const problem = isProblem(event);
  return h(
    "li",
    { class: `event${problem ? " is-problem" : ""}`, title: sayKind(event.kind) },
    h("time", { datetime: new Date(1000 * event.at_s).toISOString() }, formatClock(event.at_s)),
    h("span", { class: "event-round" }, event.round > 0 ? `r${event.round}` : ""),
    h(
      "span",
      { class: "event-text" },
      problem ? h("strong", {}, "! ") : "",
      event.text || `${sayKind(event.kind)} ${event.party}`,
    ),
  );
}

function sayKind(kind) {
  return kind.replaceAll("-", " ");
}
