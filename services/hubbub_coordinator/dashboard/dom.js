// Building the page. Text is only ever set as text: names and reasons come from others.

const SVG = "http://www.w3.org/2000/svg";
const rows = new WeakMap();

/** An HTML element with attributes, listeners (`onclick: f`) and children. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** The element of the page that has this id.
 * @returns {any} */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no element #${id}`);
  return found;
}

function fill(node, attributes, children) {
  set(node, attributes ?? {});
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Set attributes; `false` and `null` remove one. Equal values are left alone. */
export function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (name === "text") setText(node, value);
    else if (value === false || value === null || value === undefined) node.removeAttribute(name);
    else if (node.getAttribute(name) !== String(value))
      node.setAttribute(name, value === true ? "" : String(value));
  }
  return node;
}

/** Replace an element's text, if it is another one. */
export function setText(node, text) {
  const wanted = String(text ?? "");
  if (node.textContent !== wanted) node.textContent = wanted;
}

/** Show or hide. */
export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

/** Make a list's children follow its items: each is made once, then updated, moved or taken away. */
export function reconcile(parent, items, keyOf, make, update = () => {}) {
  const before = rows.get(parent) ?? new Map();
  const after = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    const node = before.get(key) ?? make(item);
    before.delete(key);
    after.set(key, node);
    update(node, item);
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
  }
  for (const node of before.values()) node.remove();
  rows.set(parent, after);
}

/** Mark one of a row of buttons as pressed, for screen readers too. */
export function press(group, isPressed) {
  for (const button of group.querySelectorAll("button"))
    set(button, { "aria-pressed": String(isPressed(button)) });
}

/** A table with a caption for screen readers; a cell is text or a node, a number is set to the right. */
export function table(caption, head, body) {
  const cell = (value, index, tag) =>
    h(
      tag,
      { class: index > 0 ? "number" : null, scope: tag === "th" ? (index > 0 ? "col" : "row") : null },
      value ?? "–",
    );
  return h(
    "table",
    { class: "data" },
    h("caption", { class: "visually-hidden" }, caption),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        head.map((name, index) => h("th", { scope: "col", class: index > 0 ? "number" : null }, name)),
      ),
    ),
    h(
      "tbody",
      {},
      body.map((line) =>
        h(
          "tr",
          {},
          line.map((value, index) => cell(value, index, index === 0 ? "th" : "td")),
        ),
      ),
    ),
  );
}
