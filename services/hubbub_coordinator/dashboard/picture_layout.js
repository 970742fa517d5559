// Layout of the picture of the parties. Pure: names and a width in, places out.

const ROWS_AT_MOST = 12;
const WIDE = 540;
const ROOMY = 760;
const TOP = 104;
const MARGIN = 12;
/** Room for the broker's name, above the lines that cross it. */
const HEADER = 76;

/** Places for all parties: clients left, broker in the middle, aggregators right, coordinator above. */
export function layOut(clients, aggregators, width) {
  const size =
    width >= WIDE
      ? {
          wide: true,
          label: 200,
          letter: 8.4,
          broker: width < ROOMY ? 124 : 168,
          card: width < ROOMY ? 164 : 200,
          cell: 32,
          columns: 10,
        }
      : { wide: false, label: 84, letter: 7.6, broker: 62, card: 100, cell: 25, columns: 4 };
  const longest = Math.max(...clients.map((name) => name.length));
  const label = Math.min(size.label, Math.max(76, Math.ceil(size.letter * longest)));
  const inRows = clients.length <= ROWS_AT_MOST;
  const row = clients.length <= 6 ? 50 : 40;
  const columns = Math.min(size.columns, Math.max(3, Math.ceil(Math.sqrt(clients.length))));
  const clientsHeight = inRows ? clients.length * row : Math.ceil(clients.length / columns) * size.cell;
  const body = Math.max(clientsHeight, aggregators.length * 84, 250);
  const broker = { x: (width - size.broker) / 2 + (size.wide ? 0 : 6), y: TOP, width: size.broker, height: body };
  const grid = { columns, cell: size.cell, top: TOP + (body - clientsHeight) / 2 };
  const right = { x: width - size.card - MARGIN / 2, width: size.card, height: 66 };
  return {
    width,
    height: TOP + body + MARGIN,
    inRows,
    wide: size.wide,
    broker,
    label,
    radius: inRows ? 13 : size.cell * 0.38,
    clients: clients.map((name, index) => ({
      name,
      ...(inRows
        ? { x: label + 30, y: TOP + (body - clientsHeight) / 2 + (index + 0.5) * row }
        : {
            x: MARGIN + grid.cell * ((index % columns) + 0.5),
            y: grid.top + grid.cell * (Math.floor(index / columns) + 0.5),
          }),
    })),
    edge: inRows ? label + 30 : MARGIN + grid.cell * columns,
    aggregators: aggregators.map((name, index) => ({
      name,
      ...right,
      y: TOP + (body * (index + 0.5)) / aggregators.length,
    })),
    coordinator: { x: broker.x + broker.width / 2, y: 36, width: size.wide ? 290 : 132, height: 52 },
  };
}

/** Point where a client's line meets the broker. */
export function entryOf(layout, index) {
  const { broker, clients } = layout;
  return { x: broker.x, y: broker.y + HEADER + ((broker.height - HEADER - 14) * (index + 0.5)) / clients.length };
}

/** Point where an aggregator's line meets the broker. */
export function exitOf(layout, aggregator) {
  const { broker } = layout;
  const share = (aggregator.y - broker.y) / broker.height;
  return { x: broker.x + broker.width, y: broker.y + HEADER + share * (broker.height - HEADER - 14) };
}

/** A line that leaves and arrives level. */
export function levelCurve(from, to) {
  const half = (to.x - from.x) / 2;
  return [from, { x: from.x + half, y: from.y }, { x: to.x - half, y: to.y }, to];
}

/** A line that leaves and arrives upright. */
export function uprightCurve(from, to) {
  const half = (to.y - from.y) / 2;
  return [from, { x: from.x, y: from.y + half }, { x: to.x, y: to.y - half }, to];
}

/** A curve as the `d` of a path. */
export function drawCurve([a, b, c, d]) {
  return `M${a.x} ${a.y}C${b.x} ${b.y} ${c.x} ${c.y} ${d.x} ${d.y}`;
}

/** Points along some curves, one after the other, for something to move along. */
export function sampleCurves(curves, steps = 10) {
  return curves.flatMap(([a, b, c, d]) =>
    Array.from({ length: steps + 1 }, (_, step) => {
      const t = step / steps;
      const u = 1 - t;
      const at = (axis) => u ** 3 * a[axis] + 3 * u * u * t * b[axis] + 3 * u * t * t * c[axis] + t ** 3 * d[axis];
      return { x: at("x"), y: at("y") };
    }),
  );
}
