// The coordinator's state machines, drawn from their tables, with the current state highlighted.

import { byId, h, press, s, set, setText } from "./dom.js";
import { layOutMachine } from "./machine_layout.js";

/** Draw the machine that is chosen, and follow the run. */
export function mountMachine(store) {
  const root = byId("machine");
  const choice = byId("machine-choice");
  let drawn = "";

  choice.addEventListener("click", (event) => {
    const wanted = event.target.closest("button")?.dataset.machine;
    if (wanted) store.set({ machine: wanted });
  });

  store.on(["machines", "machine", "detail", "rounds"], ({ machines, machine, detail, rounds }) => {
    if (!machines || !detail) return;
    press(choice, (button) => button.dataset.machine === machine);
    if (drawn !== machine) {
      drawn = machine;
      root.replaceChildren(drawMachine(machines[machine]));
    }
    const round = rounds.at(-1);
    const current = machine === "run" ? detail.state : (round?.state ?? "");
    const where = machine === "run" ? "The run" : round ? `Round ${round.round}` : "No round yet";
    const isBroken = machine === "round" && detail.ended_at_s !== null && round?.ended_at_s === null;
    light(root, current, machine === "round" && current === "collecting" ? round.phase : "");
    const verb = isBroken ? "was broken off while" : "is";
    set(root.firstElementChild, { "aria-label": current ? `${where} ${verb} ${current}` : where });
    showMoves(isBroken ? [] : machines[machine].transitions, current, `${where} ${verb} `, where);
  });
}

function drawMachine(machine) {
  const { width, height, box, places, lines } = layOutMachine(machine);
  const final = new Set(machine.states.filter((state) => state.final).map((state) => state.name));
  return s(
    "svg",
    { class: "machine-svg", viewBox: `0 0 ${width} ${height}`, role: "img" },
    s("defs", {}, arrowHead("head"), arrowHead("head-lit")),
    s(
      "g",
      {},
      lines
        .filter((line) => !line.self)
        .map((line) =>
          s(
            "path",
            { class: "move", d: line.path, "data-from": line.from, "marker-end": "url(#head)" },
            s("title", {}, `${line.from} to ${line.to}: ${line.events.join(", ")}`),
          ),
        ),
    ),
    ...[...places.values()].map((place) =>
      s(
        "g",
        {
          class: `state${final.has(place.name) ? " final" : ""}`,
          "data-state": place.name,
          transform: `translate(${place.x} ${place.y})`,
        },
        s("rect", {
          x: -box.width / 2,
          y: -box.height / 2,
          width: box.width,
          height: box.height,
          rx: box.height / 2,
        }),
        final.has(place.name)
          ? s("rect", {
              class: "inner",
              x: 3 - box.width / 2,
              y: 3 - box.height / 2,
              width: box.width - 6,
              height: box.height - 6,
              rx: box.height / 2 - 3,
            })
          : null,
        s("text", { class: "name", y: 4.5 }, place.name),
        s("text", { class: "phase", y: 13 }),
      ),
    ),
  );
}

function arrowHead(id) {
  return s(
    "marker",
    {
      id,
      viewBox: "0 0 8 8",
      refX: 5,
      refY: 4,
      markerWidth: 7,
      markerHeight: 7,
      orient: "auto-start-reverse",
      class: id,
    },
    s("path", { d: "M0 0.5L7 4L0 7.5z" }),
  );
}

function light(root, current, phase) {
  for (const state of root.querySelectorAll(".state")) {
    const name = state.getAttribute("data-state");
    state.classList.toggle("is-lit", name === current);
    const below = name === current ? phase : "";
    setText(state.querySelector(".phase"), below);
    set(state.querySelector(".name"), { y: below ? -1.5 : 4.5 });
  }
  for (const move of root.querySelectorAll(".move")) {
    const lit = move.getAttribute("data-from") === current;
    move.classList.toggle("is-lit", lit);
    set(move, { "marker-end": lit ? "url(#head-lit)" : "url(#head)" });
    if (lit) move.parentNode.append(move); // Highlighted lines are drawn over others.
  }
}

function showMoves(transitions, current, sentence, where) {
  const moves = transitions.filter((move) => move.from === current);
  const root = byId("machine-moves");
  const key = `${sentence} ${current}`;
  if (root.dataset.key === key) return;
  root.dataset.key = key;
  const events = [...new Set(moves.map((move) => move.event))];
  root.replaceChildren(
    h(
      "p",
      {},
      current ? sentence : where,
      current ? h("strong", {}, current) : "",
      current && moves.length === 0 ? ", for good." : current ? ". What moves it:" : ".",
    ),
    h(
      "ul",
      {},
      events.map((event) =>
        h(
          "li",
          {},
          h("code", {}, event),
          " to ",
          [...new Set(moves.filter((move) => move.event === event).map((move) => move.to))].join(", "),
        ),
      ),
    ),
  );
}
