// Tooltips of the picture's parties, by pointer or keyboard.

import { h, setText, show } from "./dom.js";

/** A tip over the parties of a drawing, and arrow keys that go from one to the next; one tab stop for all. */
export function createTip(root, drawing) {
  const tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  root.append(tip);
  let about = null;

  const parties = () => [...drawing.querySelectorAll("[data-party]")];

  function point(party) {
    about = party;
    show(tip, party !== null);
    if (!party) return;
    setText(tip, party.getAttribute("aria-label"));
    const place = party.getBoundingClientRect();
    const frame = root.getBoundingClientRect();
    const left = Math.min(place.left - frame.left + place.width / 2, frame.width - tip.offsetWidth / 2 - 4);
    tip.style.left = `${Math.max(tip.offsetWidth / 2 + 4, left)}px`;
    tip.style.top = `${place.bottom - frame.top + 8}px`;
  }

  function keepOneTabStop(
    stop = parties().find((party) => party.getAttribute("tabindex") === "0") ?? parties()[0],
  ) {
    for (const party of parties()) party.setAttribute("tabindex", party === stop ? "0" : "-1");
  }

  drawing.addEventListener("pointerover", (event) => point(event.target.closest("[data-party]")));
  drawing.addEventListener("pointerleave", () => point(null));
  drawing.addEventListener("focusin", (event) => {
    keepOneTabStop(event.target);
    point(event.target);
  });
  drawing.addEventListener("focusout", () => point(null));
  drawing.addEventListener("keydown", (event) => {
    const all = parties();
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    const next = step && all[all.indexOf(document.activeElement) + step];
    if (event.key === "Escape") point(null);
    if (!next) return;
    event.preventDefault();
    next.focus();
  });

  return {
    /** Refresh the open tip. */
    refresh() {
      keepOneTabStop();
      if (about?.isConnected) setText(tip, about.getAttribute("aria-label"));
      else if (about) point(null);
    },
  };
}
