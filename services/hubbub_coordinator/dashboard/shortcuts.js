// Single-key shortcuts and their list. They can be switched off, for example for users of speech input.

import { byId, h } from "./dom.js";
import { prepareDialog } from "./dialogs.js";
import { keepTaste, readTaste } from "./session.js";

const ALWAYS = [
  ["↑ ↓", "in the list of runs: the one above, the one below"],
  ["← →", "in the picture: from party to party"],
  ["Esc", "close a dialog"],
];

/** Listen for keys. A shortcut is `{ key, says, act }`. */
export function mountShortcuts(shortcuts) {
  const dialog = byId("shortcuts-dialog");
  const on = byId("shortcuts-on");
  const open = () => dialog.showModal();
  const all = [...shortcuts, { key: "?", says: "this list", act: open }];
  prepareDialog(dialog);
  on.checked = readTaste("shortcuts", "on") === "on";
  on.addEventListener("change", () => keepTaste("shortcuts", on.checked ? "on" : "off"));
  byId("open-shortcuts").addEventListener("click", open);
  byId("shortcuts-list").append(
    ...[...all.map(({ key, says }) => [key, says]), ...ALWAYS].map(([key, says]) =>
      h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, says)),
    ),
  );

  document.addEventListener("keydown", (event) => {
    if (!on.checked || event.ctrlKey || event.metaKey || event.altKey || isBusy(event.target)) return;
    const found = all.find(({ key }) => key === event.key);
    if (!found) return;
    event.preventDefault();
    found.act();
  });
}

function isBusy(target) {
  const field = target.closest("input, textarea, select, [contenteditable]");
  // A field of a dialog that was just closed has the focus for another frame, though nobody sees it.
  return document.querySelector("dialog[open]") !== null || (field !== null && field.checkVisibility());
}
