// Browser storage: the token for as long as the tab lives, preferences for longer.

const TOKEN = "hubbub.token";
const PREFIX = "hubbub.";

/** The token of this tab, or nothing. */
export function readToken() {
  return sessionStorage.getItem(TOKEN) ?? "";
}

/** Keep a token until the tab is closed; an empty one is forgotten. */
export function keepToken(token) {
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

/** A stored preference. */
export function readTaste(name, otherwise) {
  return localStorage.getItem(PREFIX + name) ?? otherwise;
}

/** Store a preference. */
export function keepTaste(name, value) {
  localStorage.setItem(PREFIX + name, value);
}
