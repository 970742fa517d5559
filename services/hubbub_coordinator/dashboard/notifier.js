// Notifications of the browser, when a run ends or waits. They are off until somebody asks for them.

import { byId, set, show } from "./dom.js";
import { listNames, nameRun, shortId } from "./format.js";
import { usualWait } from "./lateness.js";
import { keepTaste, readTaste } from "./session.js";

const TOLD = new Set(["run-completed", "run-failed", "run-cancelled", "run-paused", "run-stalled"]);

/** The button in the header; `follow` takes all events. */
export function mountNotifier(store, { nowS, complain }) {
  const button = byId("toggle-notices");
  let told = "";
  // A browser has none for a page that came over plain http from another machine.
  show(button, "Notification" in globalThis);

  const isOn = () => readTaste("notices", "off") === "on" && globalThis.Notification?.permission === "granted";
  const showState = () => set(button, { "aria-pressed": String(isOn()) });

  function notify(title, body, tag) {
    if (isOn()) new Notification(title, { body, tag, icon: "/assets/favicon.svg" });
  }

  button.addEventListener("click", async () => {
    const wanted = !isOn();
    if (wanted && (await Notification.requestPermission()) !== "granted")
      complain(new Error("the browser does not let this page notify you; its settings for this site can"));
    keepTaste("notices", wanted ? "on" : "off");
    showState();
  });
  showState();

  store.on(["tick"], ({ detail, rounds }) => {
    if (!detail || detail.waiting_for.length === 0) return;
    const wait = [detail.run, detail.round, detail.waiting_to].join(" ");
    if (wait === told || nowS() - (detail.waiting_since_s ?? nowS()) <= usualWait(rounds, detail)) return;
    told = wait;
    notify(`${nameRun(detail)} waits`, `for ${listNames(detail.waiting_for)} ${detail.waiting_to}`, wait);
  });

  return {
    /** Notify of an event, if it ends a run or makes it wait. */
    follow(event) {
      if (!TOLD.has(event.kind)) return;
      const run = store.state.runs.items.find((each) => each.run === event.run);
      notify(run ? nameRun(run) : `Run ${shortId(event.run)}`, event.text, `${event.run} ${event.kind}`);
    },
  };
}
