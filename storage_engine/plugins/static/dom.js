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

/** Return a path that may break behind each of its directories. */
export function breakable(path) {
  return path.split("/").flatMap((part, at) => (at === 0 ? [part] : ["/", h("wbr"), part]));
}

/** Return a text with the commands that it names as code, each of which a click selects as a whole. */
export function withCommands(text, commands = []) {
  // One that begins as another does is looked for first.
  const command = [...commands].sort((one, other) => other.length - one.length).find((one) => text.includes(one));
  if (!command) return [text];
  const [before, ...after] = text.split(command);
  return [...withCommands(before, commands), h("code", { class: "typed" }, command), ...withCommands(after.join(command), commands)];
}

/** Make an SVG element. */
export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

/**
 * Replace what an element has; the focus, and what is folded out, stay with what has the same `data-key`, and what
 * was scrolled stays so.
 */
export function replace(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset?.key : undefined;
  const opened = [...element.querySelectorAll("details[data-key][open]")].map((one) => one.dataset.key);
  const scrolled = places(element);
  element.replaceChildren(...children.flat(Infinity).filter(Boolean));
  for (const key of opened) element.querySelector(`details[data-key="${CSS.escape(key)}"]`)?.setAttribute("open", "");
  scrollTo(element, scrolled);
  if (focused) element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

/**
 * Replace what an element has, but for what looks as before: of that, what somebody has selected stays so. Only for
 * what has no listeners.
 */
export function renew(element, ...children) {
  const next = h("div", null, children);
  const opened = [...element.querySelectorAll("details[data-key][open]")].map((one) => one.dataset.key);
  for (const key of opened) next.querySelector(`details[data-key="${CSS.escape(key)}"]`)?.setAttribute("open", "");
  const [before, after] = [[...element.childNodes], [...next.childNodes]];
  if (before.length !== after.length) {
    replace(element, after);
    return;
  }
  const same = before.map((node, at) => node.isEqualNode(after[at]));
  if (same.every(Boolean)) return;
  // Nodes that stay are not moved: a move would end a selection, too.
  before.forEach((node, at) => {
    if (!same[at]) swap(node, after[at]);
  });
}

/** Return what is scrolled by itself in a node, and the node, if it is. */
function scrolling(node) {
  return node.querySelectorAll ? [...(node.matches(".scroll") ? [node] : []), ...node.querySelectorAll(".scroll")] : [];
}

function places(node) {
  return scrolling(node).map((one) => [one.scrollLeft, one.scrollTop]);
}

function scrollTo(node, scrolled) {
  scrolling(node).forEach((one, at) => {
    if (scrolled[at]?.some((value) => value > 0)) one.scrollTo(...scrolled[at]);
  });
}

function swap(node, other) {
  const focused = node.contains(document.activeElement) ? document.activeElement.dataset?.key : undefined;
  const scrolled = places(node);
  node.replaceWith(other);
  scrollTo(other, scrolled);
  if (focused) other.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

let count = 0;

/** Return an id that no other element has. */
export function newId(name) {
  count += 1;
  return `${name}-${count}`;
}
