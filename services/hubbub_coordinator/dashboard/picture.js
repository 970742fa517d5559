// The parties as a live picture. A client's update is a ring of as many colours as there are aggregators; each
// aggregator is only ever sent its own colour.

import { byId, reconcile, s, set, setText } from "./dom.js";
import { listNames } from "./format.js";
import { drawFrame } from "./picture_frame.js";
import { layOut } from "./picture_layout.js";
import { createMotion } from "./picture_motion.js";
import { makeClient, makeServer, updateClient, updateServer } from "./picture_nodes.js";
import { viewParties } from "./picture_view.js";
import { createTip } from "./tip.js";

/** Draw the chosen run's parties, and return what plays an event on the picture. */
export function mountPicture(store, { nowS }) {
  const root = byId("picture");
  const layers = {
    lines: s("g"),
    bundle: s("g"),
    boxes: s("g"),
    strands: s("g"),
    motion: s("g", { class: "motion", "aria-hidden": "true" }),
    servers: s("g"),
    clients: s("g"),
  };
  const drawing = s(
    "svg",
    {
      class: "picture-svg",
      role: "group",
      "aria-label": "Parties of the run; arrow keys go from one to the next",
    },
    layers.lines,
    layers.boxes,
    layers.strands,
    layers.bundle,
    layers.motion,
    layers.servers,
    layers.clients,
  );
  root.append(drawing);
  const motion = createMotion(layers.motion, { nowS });
  const tip = createTip(root, drawing);
  let scene = { key: "", layout: null };

  function redraw() {
    const { detail, rounds, about } = store.state;
    const width = Math.floor(root.clientWidth);
    if (!detail || width === 0) return;
    const names = (role) => detail.participants.filter((party) => party.role === role).map((party) => party.name);
    const key = [detail.run, width].join();
    if (key !== scene.key) {
      scene = { key, layout: layOut(names("client"), names("aggregator"), width) };
      drawFrame(drawing, layers, scene.layout, detail);
      motion.setLayout(scene.layout);
    }
    drawParties(layers, scene.layout, viewParties(detail, rounds, nowS()));
    showPhase(detail, rounds);
    showPromise(detail, about);
    tip.refresh();
  }

  store.on(["detail", "rounds", "tick"], redraw);
  new ResizeObserver(redraw).observe(root);
  return { play: (event) => event.run === store.state.chosen && motion.play(event) };
}

function drawParties(layers, layout, parties) {
  const withViews = (places) =>
    places.map((place, index) => ({ place, index, view: parties.get(place.name) })).filter(({ view }) => view);
  reconcile(
    layers.servers,
    withViews(layout.aggregators),
    ({ place }) => `${place.name} ${layout.width}`,
    (item) => makeServer(item, layout),
    (node, item) => updateServer(node, item, layout),
  );
  reconcile(
    layers.clients,
    withViews(layout.clients),
    ({ place }) => `${place.name} ${layout.width}`,
    (item) => makeClient(item, layout),
    (node, item) => updateClient(node, item, layout),
  );
  for (const strand of layers.strands.childNodes) {
    const sent = parties
      .get(strand.getAttribute("data-client"))
      ?.shares.includes(strand.getAttribute("data-server"));
    strand.classList.toggle("is-sent", Boolean(sent));
  }
  layers.bundle.childNodes.forEach(
    (line, index) =>
      layout.inRows && set(line, { class: `line client is-${parties.get(layout.clients[index].name)?.state}` }),
  );
}

function showPhase(detail, rounds) {
  const round = rounds.at(-1);
  const last =
    round && detail.ended_at_s === null
      ? `round ${round.round}, ${round.phase}: ${round.state}`
      : round
        ? `as round ${round.round} left them`
        : detail.state;
  setText(byId("picture-phase"), last);
}

function showPromise(detail, about) {
  const strategy = about?.strategies.find((each) => each.name === detail.strategy);
  const line = byId("promise");
  const reveals = strategy?.reveals ?? "";
  set(line, { class: `promise${reveals ? " reveals" : ""}` });
  const servers = detail.participants.filter((party) => party.role === "aggregator").map((party) => party.name);
  setText(
    line,
    reveals
      ? `! With ${detail.strategy}, more is seen than sums: ${reveals}`
      : `An update leaves its client in ${servers.length} shares, one colour each, that look like ` +
          `random numbers. ${listNames(servers)} see one colour each; ` +
          "only all colours of everybody together give the sum" +
          (detail.wire === "compact" ? ", and that under a mask that only clients can take off." : ".") +
          (detail.block > 1
            ? ` With blocks of ${detail.block}, clients know everybody's signs where all agree.`
            : "") +
          (detail.bits === 1 ? " With one bit, clients know everybody's signs where all agree." : ""),
  );
}
