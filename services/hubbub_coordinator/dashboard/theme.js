// Light or dark theme: the system's, until the user chooses one.

import { byId, set } from "./dom.js";
import { keepTaste, readTaste } from "./session.js";

/** The toggle; the theme goes into the store too, for drawings that CSS does not style. */
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
