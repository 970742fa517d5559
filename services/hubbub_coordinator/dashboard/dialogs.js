// Shared behaviour of dialogs: closing by a button or a click outside, errors that are read out, saved files.

import { h, setText } from "./dom.js";

/** Let a dialog be closed by its own buttons and by a click outside. */
export function prepareDialog(dialog) {
  dialog.addEventListener("click", (event) => {
    const outside = event.target === dialog && !isInside(dialog.getBoundingClientRect(), event);
    if (outside || event.target.closest("[data-close]")) dialog.close();
  });
}

/** Run an action when a form is sent; the dialog shows its error, and the button is disabled meanwhile. */
export function onSubmit(form, errorLine, act) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("[type=submit]");
    button.disabled = true;
    setText(errorLine, "");
    try {
      await act();
    } catch (error) {
      setText(errorLine, capitalise(error.message));
    } finally {
      button.disabled = false;
    }
  });
}

/** Save a blob as a file. */
export function saveFile(content, name) {
  const address = URL.createObjectURL(content);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** A message as a sentence. */
export function capitalise(text) {
  const sentence = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(sentence) ? sentence : `${sentence}.`;
}

function isInside(box, { clientX, clientY }) {
  return clientX >= box.left && clientX <= box.right && clientY >= box.top && clientY <= box.bottom;
}
