// Small helpers: elements that are made once and changed only where something is new.

export const byId = id => document.getElementById(id);

/** An element with attributes (`text`, `class`, `on*` and any other) and children. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, name) {
  if (element.className !== name) element.className = name;
}

/** Makes the children of `parent` one for each item, by key: known ones are kept and updated. */
export function keep(parent, items, key, create, update) {
  const known = parent._known ??= new Map();
  const wanted = new Set();
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    wanted.add(name);
    let element = known.get(name);
    if (!element) { element = create(item); known.set(name, element); }
    update(element, item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const [name, element] of known) {
    if (!wanted.has(name)) { element.remove(); known.delete(name); }
  }
}

/** A table from rows of texts or elements; the first is the header. */
export function table(header, rows) {
  const cell = value => value instanceof Node ? make("td", {}, value)
    : make("td", { text: String(value ?? ""), class: String(value ?? "").length > 40 ? "long" : undefined });
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": header.join(", ") }, make("table", {},
    make("thead", {}, make("tr", {}, ...header.map(text => make("th", { scope: "col", text })))),
    make("tbody", {}, ...rows.map(row => make("tr", {}, ...row.map(cell))))));
}

/** Names and values. */
export function list(facts) {
  return make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", { text: name }),
    value instanceof Node ? make("dd", {}, value) : make("dd", { text: String(value) })]));
}
