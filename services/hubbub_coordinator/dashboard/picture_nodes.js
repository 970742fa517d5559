// The parties in the picture: a client is a ring of all colours, an aggregator a card of one.

import { s, set, setText } from "./dom.js";
import { plural } from "./format.js";
import { arc, box, COLOURS, cut, label } from "./picture_shapes.js";

/** Draw a client without its status. */
export function makeClient({ place }, layout) {
  const radius = layout.radius;
  const servers = layout.aggregators.length;
  const arcs = layout.aggregators.map((_, index) =>
    s("path", {
      class: `arc share-${index % COLOURS}`,
      d: arc(radius - 2, index / servers, (index + 1) / servers),
    }),
  );
  const text = layout.inRows
    ? [label("name end", -radius - 10, -2, ""), label("note end", -radius - 10, 14, "")]
    : [];
  return s(
    "g",
    {
      class: "party client",
      transform: `translate(${place.x} ${place.y})`,
      role: "img",
      "data-party": place.name,
    },
    s("circle", { class: "halo", r: radius + 4 }),
    s("circle", { class: "disc", r: radius }),
    ...arcs,
    s("path", { class: "busy", d: arc(radius - 2, 0, 0.28) }),
    label("mark middle", 0, 4, ""),
    ...text,
  );
}

/** Update a client's status, and show which of its shares have arrived. */
export function updateClient(node, { place, view }, layout) {
  set(node, {
    class: `party client is-${view.state}${view.trouble ? " in-trouble" : ""}`,
    "aria-label": view.says,
  });
  node
    .querySelectorAll(".arc")
    .forEach((each, index) =>
      each.classList.toggle("is-sent", view.shares.includes(layout.aggregators[index].name)),
    );
  setText(node.querySelector(".mark"), view.mark || (layout.inRows || !layout.wide ? "" : abbreviate(place.name)));
  if (!layout.inRows) return;
  setText(node.querySelector(".name"), cut(place.name, Math.floor(layout.label / 7.2)));
  setText(node.querySelector(".note"), cut(view.word, Math.floor(layout.label / 6.2)));
}

/** Draw an aggregator without its status. */
export function makeServer({ place, index }, layout) {
  const left = place.x;
  const top = place.y - place.height / 2;
  const inset = layout.wide ? 18 : 12;
  return s(
    "g",
    { class: `party server share-${index % COLOURS}`, role: "img", "data-party": place.name },
    box("card", left, top, place.width, place.height),
    s("rect", { class: "tab", x: left, y: top + 8, width: 4, height: place.height - 16, rx: 2 }),
    label("name", left + inset, top + 22, ""),
    label("note", left + inset, top + 40, ""),
    ...gauge(left + inset, top + 49, place.width - 2 * inset, layout.inRows ? layout.clients.length : 1),
  );
}

/** Update an aggregator's status, and show how many shares it holds. */
export function updateServer(node, { place, index, view }, layout) {
  const inset = layout.wide ? 18 : 12;
  const total = layout.clients.length;
  const counted = layout.wide ? `${view.held} of ${plural(total, "share")}` : `${view.held} / ${total} shares`;
  const holds = view.state === "released" ? "sum released" : view.held > 0 ? counted : view.word;
  set(node, {
    class: `party server share-${index % COLOURS} is-${view.state}${view.trouble ? " in-trouble" : ""}`,
    "aria-label": view.says,
  });
  setText(
    node.querySelector(".name"),
    `${view.trouble ? "! " : ""}${cut(place.name, Math.floor((place.width - 2 * inset) / 7))}`,
  );
  setText(node.querySelector(".note"), view.late ? view.word : holds);
  const pips = [...node.querySelectorAll(".pip")];
  if (layout.inRows) pips.forEach((pip, at) => pip.classList.toggle("is-held", at < view.held));
  else set(node.querySelector(".pip-part"), { width: ((place.width - 2 * inset) * view.held) / total });
}

/** A place for each share that may come, or for many clients one bar that fills. */
function gauge(x, y, width, count) {
  const step = width / count;
  const pips = Array.from({ length: count }, (_, at) =>
    s("rect", { class: "pip", x: x + at * step, y, width: step - (count > 1 ? 3 : 0), height: 6, rx: 2 }),
  );
  return count > 1 ? pips : [...pips, s("rect", { class: "pip-part", x, y, width: 0, height: 6, rx: 2 })];
}

function abbreviate(name) {
  return name.match(/\d{1,3}$/)?.[0] ?? name.slice(0, 2);
}
