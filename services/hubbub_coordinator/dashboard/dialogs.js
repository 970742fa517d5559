// What all dialogs share: a button that closes, a click outside that closes, an error that is read out.

import { setText } from "./dom.js";

/** Let a dialog be closed by its own buttons and by a click outside. */
export function prepareDialog(dialog) {
  dialog.addEventListener("click", (event) => {
    const outside = event.target === dialog && !isInside(dialog.getBoundingClientRect(), event);
    if (outside || event.target.closest("[data-close]")) dialog.close();
  });
}

/** Do something when a form is sent; what goes wrong is said in the dialog, and the button waits meanwhile. */
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

/** A message as a sentence. */
export function capitalise(text) {
  const sentence = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(sentence) ? sentence : `${sentence}.`;
}

function isInside(box, { clientX, clientY }) {
  return clientX >= box.left && clientX <= box.right && clientY >= box.top && clientY <= box.bottom;
}
