// Shapes of the picture.

import { s } from "./dom.js";

export const COLOURS = 6;

/** A box with round corners. */
export function box(name, x, y, width, height) {
  return s("rect", { class: `box ${name}`, x, y, width, height, rx: 10 });
}

/** A line of text. */
export function label(name, x, y, text) {
  return s("text", { class: name, x, y }, text);
}

/** A name shortened in its middle: the end tells aggregator-north from aggregator-south. */
export function cut(text, most) {
  if (text.length <= most) return text;
  const end = Math.floor((most - 1) / 2);
  return `${text.slice(0, most - 1 - end)}…${text.slice(text.length - end)}`;
}

/** A part of a ring, from one share of a turn to another. */
export function arc(radius, from, to) {
  const gap = 0.012;
  const [a, b] = [from + gap, to - gap].map((turn) => 2 * Math.PI * (turn - 0.25));
  const point = (angle) => `${(radius * Math.cos(angle)).toFixed(2)} ${(radius * Math.sin(angle)).toFixed(2)}`;
  return `M${point(a)}A${radius} ${radius} 0 ${to - from > 0.5 ? 1 : 0} 1 ${point(b)}`;
}
