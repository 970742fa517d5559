// State of the connection, in the header, and the current error, below it.

import { byId, set, setText, show } from "./dom.js";
import { formatClock } from "./format.js";

/** Keep the connection's mark and the error line up to date. */
export function mountConnection(store, { onRetry, announce }) {
  let before = "stopped";
  byId("connection-retry").addEventListener("click", onRetry);
  store.on(["connection", "tick", "about"], ({ connection, about, liveUntilMs }) => {
    set(byId("connection"), { "data-state": connection.name });
    setText(byId("connection-text"), say(connection));
    show(byId("connection-retry"), connection.name === "waiting");
    setText(byId("coordinator"), about ? `${about.coordinator} · ${about.version}` : "");
    showTrouble(connection, about, liveUntilMs);
    if (connection.name === before) return;
    if (connection.name === "waiting" && before !== "connecting")
      announce("The connection to the coordinator is lost.");
    if (connection.name === "live" && liveUntilMs > 0 && before === "connecting") announce("Live.");
    before = connection.name;
  });
}

function say({ name, untilMs }) {
  if (name === "waiting") return `Reconnecting in ${Math.max(1, Math.ceil((untilMs - Date.now()) / 1000))} s`;
  return { live: "Live", connecting: "Connecting", stopped: "Stopped" }[name];
}

function showTrouble(connection, about, liveUntilMs) {
  const line = byId("trouble");
  const lost = connection.name === "waiting" || (connection.name === "connecting" && liveUntilMs > 0);
  const text = lost
    ? liveUntilMs > 0
      ? `The connection is lost. What you see is from ${formatClock(liveUntilMs / 1000)}; ` +
        "what happens meanwhile will be shown when it is back."
      : "The coordinator cannot be reached."
    : connection.name === "live" && about && !about.broker_connected
      ? "The coordinator has no connection to the broker: rounds stand still until it is back."
      : "";
  show(line, text !== "");
  setText(line, text);
}
