// Layered layout of a state machine, from its table. Pure: the table in, places and lines out.

const BOX = { width: 116, height: 40 };
const STEP = { x: 134, y: 76 };

/** Places of the states and lines between them; a line stands for all events that lead the same way. */
export function layOutMachine(machine) {
  const layers = arrange(machine, findLayers(machine));
  const widest = Math.max(...layers.map((layer) => layer.length));
  const width = Math.max(widest * STEP.x, 360);
  const places = new Map();
  layers.forEach((layer, depth) =>
    layer.forEach((name, index) =>
      places.set(name, {
        name,
        depth,
        x: width / 2 + (index - (layer.length - 1) / 2) * STEP.x,
        y: 28 + depth * STEP.y,
      }),
    ),
  );
  return { width, height: 56 + (layers.length - 1) * STEP.y, box: BOX, places, lines: findLines(machine, places) };
}

/** How deep each state lies: the longest way to it that never goes back; what is final lies deepest. */
function findLayers({ initial, states, transitions }) {
  const onward = findOnward(initial, transitions);
  const depth = new Map(states.map((state) => [state.name, 0]));
  for (let pass = 0; pass < states.length; pass += 1) {
    for (const { from, to } of onward) depth.set(to, Math.max(depth.get(to), depth.get(from) + 1));
  }
  const deepest = Math.max(...depth.values());
  for (const state of states) if (state.final) depth.set(state.name, deepest);
  return depth;
}

/** The moves without those that lead back to a state on the way. */
function findOnward(initial, transitions) {
  const onward = [];
  const done = new Set();
  const walk = (name, path) => {
    if (done.has(name)) return;
    for (const move of transitions.filter((each) => each.from === name)) {
      if (path.has(move.to)) continue;
      onward.push(move);
      walk(move.to, new Set([...path, move.to]));
    }
    done.add(name);
  };
  walk(initial, new Set([initial]));
  return onward;
}

/** The layers, each in the order of where its states are reached from, so that lines cross little. */
function arrange({ states, transitions }, depth) {
  const layers = [];
  for (const { name } of states) (layers[depth.get(name)] ??= []).push(name);
  const place = new Map();
  for (const layer of layers) {
    const centre = (name) => {
      const before = transitions.filter((move) => move.to === name && move.from !== name && place.has(move.from));
      return before.reduce((total, move) => total + place.get(move.from), 0) / (before.length || 1);
    };
    layer.sort((a, b) => centre(a) - centre(b));
    layer.forEach((name, index) => place.set(name, index - (layer.length - 1) / 2));
  }
  return layers.filter(Boolean);
}

function findLines({ transitions }, places) {
  const events = new Map();
  for (const { from, event, to } of transitions) {
    const key = JSON.stringify([from, to]);
    events.set(key, [...(events.get(key) ?? []), event]);
  }
  return [...events].map(([key, names]) => {
    const [from, to] = JSON.parse(key);
    return {
      from,
      to,
      events: names,
      self: from === to,
      path: from === to ? "" : drawLine(places.get(from), places.get(to)),
    };
  });
}

/** Straight down to the next layer; past a layer, or up again, around the side. */
function drawLine(from, to) {
  const half = BOX.height / 2;
  const down = to.depth - from.depth;
  if (down === 1) {
    const [a, b] = [from.y + half, to.y - half - 5];
    return `M${from.x} ${a}C${from.x} ${(a + b) / 2} ${to.x} ${(a + b) / 2} ${to.x} ${b}`;
  }
  const side = to.x > from.x || (to.x === from.x && down > 0) ? 1 : -1;
  const start = from.x + (side * BOX.width) / 2;
  if (down > 1) {
    const end = to.y - half - 5;
    const bend = to.x === from.x ? start + side * 44 : to.x;
    return to.x === from.x
      ? `M${start} ${from.y}C${bend} ${from.y} ${bend} ${to.y} ${start + 5 * side} ${to.y}`
      : `M${start} ${from.y}C${to.x} ${from.y} ${to.x} ${from.y + 40} ${to.x} ${end}`;
  }
  const end = to.x + (side * BOX.width) / 2;
  const bend = Math.max(start * side, end * side) * side + side * 30;
  return `M${start} ${from.y}C${bend} ${from.y} ${bend} ${to.y} ${end + 5 * side} ${to.y}`;
}
