// Dialog that asks for the token: once per tab, never in an address.

import { byId, setText, show } from "./dom.js";
import { onSubmit, prepareDialog } from "./dialogs.js";
import { keepToken, readToken } from "./session.js";

/** The dialog; `onToken` tries a token and throws if it is refused; `onForgotten` is called when it is removed. */
export function mountToken({ onToken, onForgotten }) {
  const dialog = byId("token-dialog");
  const input = byId("token-input");
  const errorLine = byId("token-error");
  prepareDialog(dialog);

  function open(why = "") {
    input.value = "";
    setText(errorLine, why);
    show(byId("token-forget"), readToken() !== "");
    if (!dialog.open) dialog.showModal();
    input.focus();
  }

  onSubmit(byId("token-form"), errorLine, async () => {
    const before = readToken();
    keepToken(input.value.trim());
    try {
      await onToken();
    } catch (error) {
      keepToken(before);
      throw error;
    }
    input.value = "";
    dialog.close();
  });
  byId("token-forget").addEventListener("click", () => {
    keepToken("");
    dialog.close();
    onForgotten();
  });
  byId("open-token").addEventListener("click", () => open());
  byId("unlock").addEventListener("click", () => open());
  return { open };
}
