// The token: a link brings it in its fragment, which no server sees, or a dialog asks for it, once per tab.

import { byId, setText, show } from "./dom.js";
import { capitalise, onSubmit, prepareDialog } from "./dialogs.js";
import { keepToken, readToken } from "./session.js";

const IN_ADDRESS = /^#token=([A-Za-z0-9._~+/-]+=*)$/;

/** Keep the token of a link, and take it out of the address; return whether there was one. */
function takeFromAddress() {
  const token = IN_ADDRESS.exec(location.hash)?.[1];
  if (!token) return false;
  keepToken(token);
  history.replaceState(null, "", location.pathname);
  return true;
}

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
  takeFromAddress();
  addEventListener("hashchange", async () => {
    const before = readToken();
    if (!takeFromAddress()) return;
    try {
      await onToken();
      dialog.close();
    } catch (error) {
      keepToken(before);
      open(capitalise(error.message));
    }
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
