// Static parts of the picture: coordinator, broker, and the lines between the parties.

import { s, set } from "./dom.js";
import { drawCurve, entryOf, exitOf, levelCurve, uprightCurve } from "./picture_layout.js";
import { box, COLOURS, cut, label } from "./picture_shapes.js";

const STRANDS = 20;

/** Draw all of it anew, for another run or another width. */
export function drawFrame(drawing, layers, layout, detail) {
  set(drawing, { viewBox: `0 0 ${layout.width} ${layout.height}`, width: layout.width, height: layout.height });
  const { broker, coordinator } = layout;
  const foot = { x: coordinator.x, y: coordinator.y + coordinator.height / 2 };
  layers.lines.replaceChildren(
    s("path", { class: "line order", d: drawCurve(uprightCurve(foot, { x: coordinator.x, y: broker.y })) }),
    ...layout.aggregators.map((server, index) =>
      s("path", {
        class: `line server share-${index % COLOURS}`,
        d: drawCurve(levelCurve(exitOf(layout, server), { x: server.x, y: server.y })),
      }),
    ),
  );
  layers.bundle.replaceChildren(
    ...(layout.inRows
      ? layout.clients.map((client, index) =>
          s("path", {
            class: "line client",
            d: drawCurve(levelCurve({ x: client.x + layout.radius, y: client.y }, entryOf(layout, index))),
          }),
        )
      : [drawBundle(layout)]),
  );
  layers.strands.replaceChildren(...drawStrands(layout));
  layers.boxes.replaceChildren(
    box(
      "coordinator",
      coordinator.x - coordinator.width / 2,
      coordinator.y - coordinator.height / 2,
      coordinator.width,
      coordinator.height,
    ),
    label(
      "name middle",
      coordinator.x,
      coordinator.y - 4,
      cut(detail.manifest.coordinator, layout.wide ? 30 : 16),
    ),
    label(
      "note middle",
      coordinator.x,
      coordinator.y + 14,
      layout.wide ? "orders and byte counts; no share, no sum" : "no share, no sum",
    ),
    box("broker", broker.x, broker.y, broker.width, broker.height),
    drawLock(broker.x + broker.width / 2, broker.y + 30),
    label("name middle", broker.x + broker.width / 2, broker.y + 58, "broker"),
    ...(layout.wide ? [label("note middle", broker.x + broker.width / 2, broker.y + 75, "payloads are sealed")] : []),
  );
  layers.clients.replaceChildren();
  layers.servers.replaceChildren();
}

/** Inside the broker each update splits into strands, one colour for each aggregator; of many, some are drawn. */
function drawStrands(layout) {
  const every = Math.ceil(layout.clients.length / STRANDS);
  return layout.clients.flatMap((client, index) =>
    index % every > 0
      ? []
      : layout.aggregators.map((server, colour) =>
          s("path", {
            class: `strand share-${colour % COLOURS}`,
            d: drawCurve(levelCurve(entryOf(layout, index), exitOf(layout, server))),
            "data-client": client.name,
            "data-server": server.name,
          }),
        ),
  );
}

function drawBundle(layout) {
  const top = layout.clients[0].y;
  const bottom = layout.clients.at(-1).y;
  const [first, last] = [entryOf(layout, 0), entryOf(layout, layout.clients.length - 1)];
  const x = layout.edge + 4;
  const upper = drawCurve(levelCurve({ x, y: top }, first));
  const lower = drawCurve(levelCurve(last, { x, y: bottom }));
  return s("path", { class: "bundle", d: `${upper}L${lower.slice(1)}Z` });
}

function drawLock(x, y) {
  return s(
    "g",
    { class: "lock", transform: `translate(${x} ${y})` },
    s("rect", { x: -7, y: -3, width: 14, height: 11, rx: 2.5 }),
    s("path", { d: "M-4 -3v-3a4 4 0 0 1 8 0v3" }),
  );
}
