// Announcements for screen readers, and error messages for everybody.

import { byId, setText, show } from "./dom.js";
import { capitalise } from "./dialogs.js";
import { isProblem } from "./log.js";

const TOAST_MS = 8000;
const WORTH_SAYING = new Set([
  "run-paused",
  "run-resumed",
  "run-completed",
  "run-failed",
  "run-cancelled",
  "round-released",
]);

/** `announce` for screen readers, `complain` for all. */
export function createAnnouncer() {
  const toast = byId("toast");
  let timer = 0;
  const announce = (text) => setText(byId("announcer"), text);
  return {
    announce,
    /** Announce an event of the chosen run, if it is worth an interruption. */
    announceEvent(event) {
      if (WORTH_SAYING.has(event.kind) || isProblem(event)) announce(event.text);
    },
    complain(error) {
      setText(toast, capitalise(error.message));
      show(toast, true);
      clearTimeout(timer);
      timer = setTimeout(() => show(toast, false), TOAST_MS);
    },
  };
}
