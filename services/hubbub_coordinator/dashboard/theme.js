// Light or dark: as the system has it, until somebody says otherwise.

import { byId, set } from "./dom.js";
import { keepTaste, readTaste } from "./session.js";

/** The toggle; the store hears which theme it is, for what is drawn and not styled. */
export function mountTheme(store) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const current = () => readTaste("theme", system.matches ? "dark" : "light");

  function apply() {
    const theme = current();
    document.documentElement.dataset.theme = theme;
    set(byId("toggle-theme"), { "aria-pressed": String(theme === "dark") });
    store.set({ theme });
  }

  function toggle() {
    keepTaste("theme", current() === "dark" ? "light" : "dark");
    apply();
  }

  byId("toggle-theme").addEventListener("click", toggle);
  system.addEventListener("change", apply);
  apply();
  return { toggle };
}
