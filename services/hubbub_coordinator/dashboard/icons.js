// A small mark for each state of a run: the shape says it, colour only helps.

import { s } from "./dom.js";

const SHAPES = {
  enrolling: () => [s("circle", { cx: 8, cy: 8, r: 5.5, class: "stroke dotted" })],
  agreeing: () => [
    s("circle", { cx: 8, cy: 8, r: 5.5, class: "stroke" }),
    s("path", { d: "M8 2.5a5.5 5.5 0 0 1 0 11z", class: "fill" }),
  ],
  running: () => [
    s("circle", { cx: 8, cy: 8, r: 6.2, class: "stroke ring" }),
    s("circle", { cx: 8, cy: 8, r: 3.4, class: "fill" }),
  ],
  paused: () => [
    s("rect", { x: 4, y: 3, width: 3, height: 10, rx: 1, class: "fill" }),
    s("rect", { x: 9, y: 3, width: 3, height: 10, rx: 1, class: "fill" }),
  ],
  completed: () => [s("path", { d: "M3 8.6l3.4 3.4L13 4.8", class: "stroke thick" })],
  failed: () => [s("path", { d: "M4 4l8 8M12 4l-8 8", class: "stroke thick" })],
  cancelled: () => [
    s("circle", { cx: 8, cy: 8, r: 5.5, class: "stroke" }),
    s("path", { d: "M4.2 11.8l7.6-7.6", class: "stroke" }),
  ],
};

/** The mark of a run's state; the word beside it is for screen readers too, so the mark itself is silent. */
export function stateIcon(state) {
  return s(
    "svg",
    { viewBox: "0 0 16 16", class: `state-icon is-${state}`, "aria-hidden": "true", focusable: "false" },
    ...(SHAPES[state] ?? SHAPES.enrolling)(),
  );
}
