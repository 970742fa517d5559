// Moving messages: small dots that play the events of the stream.

import { s } from "./dom.js";
import { entryOf, exitOf, levelCurve, sampleCurves, uprightCurve } from "./picture_layout.js";

const FRESH_S = 6;
const AT_ONCE = 160;
const FANNED_OUT = 40;
const FLIGHT_MS = 1300;

/** A layer that plays events on a layout; call `setLayout` whenever that changes. */
export function createMotion(layer, { nowS }) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  let layout = null;
  let indexes = new Map();

  function routesOf(event) {
    const client = layout.clients[indexes.get(event.party)];
    const server = layout.aggregators.find((each) => each.name === event.party);
    switch (event.kind) {
      case "share-set-delivered":
        return client ? sharesOf(client, event.text) : [];
      case "sum-released":
        return server ? sumsOf(server, event.text) : [];
      case "round-opened":
        return spread(layout.clients).map((to) => ({ kind: "order", curves: reverse(upToCoordinator(to)) }));
      case "phase-closed":
        return layout.aggregators.map((to) => ({ kind: "order", curves: reverse(fromServer(to)) }));
      case "update-applied":
      case "party-joined":
      case "party-ready":
        if (client) return [{ kind: "report", curves: upToCoordinator(client) }];
        return server ? [{ kind: "report", curves: fromServer(server) }] : [];
      default:
        return [];
    }
  }

  function sharesOf(client, text) {
    const named = layout.aggregators.filter((each) => mentions(text, each.name));
    return named.map((server) => ({ kind: colourOf(server, "share"), curves: throughBroker(client, server) }));
  }

  /** A sum goes to the combiner, if another one is named, and otherwise to every client. */
  function sumsOf(server, text) {
    const combiner = layout.aggregators.find((each) => each !== server && mentions(text, each.name));
    if (combiner) return [{ kind: colourOf(server, "sum"), curves: backAndForth(server, combiner) }];
    return spread(layout.clients).map((to) => ({
      kind: colourOf(server, "sum"),
      curves: reverse(throughBroker(to, server)),
    }));
  }

  function colourOf(server, kind) {
    return `${kind} share-${layout.aggregators.indexOf(server) % 6}`;
  }

  function throughBroker(client, server) {
    const entry = entryOf(layout, indexes.get(client.name));
    const exit = exitOf(layout, server);
    return [levelCurve(client, entry), levelCurve(entry, exit), levelCurve(exit, { x: server.x, y: server.y })];
  }

  /** From one aggregator into the broker and out again to another. */
  function backAndForth(from, to) {
    const [out, back] = [exitOf(layout, from), exitOf(layout, to)];
    const deep = { x: layout.broker.x + layout.broker.width / 2, y: (out.y + back.y) / 2 };
    return [
      levelCurve({ x: from.x, y: from.y }, out),
      levelCurve(out, deep),
      levelCurve(deep, back),
      levelCurve(back, { x: to.x, y: to.y }),
    ];
  }

  function upToCoordinator(client) {
    const entry = entryOf(layout, indexes.get(client.name));
    return [levelCurve(client, entry), uprightCurve(entry, footOfCoordinator())];
  }

  function fromServer(server) {
    const exit = exitOf(layout, server);
    return [levelCurve({ x: server.x, y: server.y }, exit), uprightCurve(exit, footOfCoordinator())];
  }

  function footOfCoordinator() {
    return { x: layout.coordinator.x, y: layout.coordinator.y + layout.coordinator.height / 2 };
  }

  function fly({ kind, curves }, delay) {
    if (layer.childElementCount >= AT_ONCE) return;
    const dot = s("circle", {
      r: kind.startsWith("sum") ? 5 : kind.startsWith("share") ? 4.5 : 3,
      class: `dot ${kind}`,
    });
    const frames = sampleCurves(curves).map((point) => ({
      transform: `translate(${point.x}px, ${point.y}px)`,
      opacity: 1,
    }));
    frames[0].opacity = 0;
    frames[frames.length - 1].opacity = 0;
    layer.append(dot);
    dot.animate(frames, { duration: FLIGHT_MS, delay, easing: "ease-in-out", fill: "both" }).finished.then(
      () => dot.remove(),
      () => dot.remove(),
    );
  }

  return {
    setLayout(next) {
      layout = next;
      indexes = new Map(next.clients.map((client, index) => [client.name, index]));
      layer.replaceChildren();
    },
    play(event) {
      if (!layout || calm.matches || document.hidden || nowS() - event.at_s > FRESH_S) return;
      routesOf(event).forEach((route) => fly(route, 250 * Math.random()));
    },
  };
}

/** Return whether a sentence names a party, and not just one whose name begins alike. */
function mentions(text, name) {
  return text.split(/[^A-Za-z0-9_.-]+/).some((word) => word === name || word === `${name}.`);
}

function reverse(curves) {
  return curves.toReversed().map((curve) => curve.toReversed());
}

/** Sample of a long list: a hundred dots at once say no more than forty. */
function spread(places) {
  const every = Math.ceil(places.length / FANNED_OUT);
  return places.filter((_, index) => index % every === 0);
}
