// Elements without markup text: nothing that a store, a topic or a group is called can become HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [type, listener] of Object.entries(value)) element.addEventListener(type, listener);
    else if (name === "vars") for (const [key, item] of Object.entries(value)) element.style.setProperty(key, item);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Make an HTML element; `on` has listeners, `vars` custom properties, which the policy allows through CSSOM. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** Make an SVG element. */
export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

/** Replace what an element has; the focus, and what is folded out, stay with what has the same `data-key`. */
export function replace(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset?.key : undefined;
  const opened = [...element.querySelectorAll("details[data-key][open]")].map((one) => one.dataset.key);
  element.replaceChildren(...children.flat(Infinity).filter(Boolean));
  for (const key of opened) element.querySelector(`details[data-key="${CSS.escape(key)}"]`)?.setAttribute("open", "");
  if (focused) element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

let count = 0;

/** Return an id that no other element has. */
export function newId(name) {
  count += 1;
  return `${name}-${count}`;
}
