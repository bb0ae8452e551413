// Light or dark, as Airflow is: it keeps its choice in localStorage, and tells other documents by an event.

import { stored } from "./storage.js";

const KEY = "theme";
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
const colours = new Map();
let probe = null;

function current() {
  const kept = stored(KEY);
  return kept === "dark" || kept === "light" ? kept : dark.matches ? "dark" : "light";
}

function apply() {
  document.documentElement.dataset.theme = current();
  colours.clear();
  for (const listener of listeners) listener();
}

/** Follow Airflow's switch from now on. */
export function followTheme() {
  apply();
  window.addEventListener("storage", (event) => {
    if (event.key === KEY || event.key === null) apply();
  });
  dark.addEventListener("change", apply);
}

/** Call a function after each switch; return what ends that. */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Return a colour of the stylesheet as a canvas takes it. */
export function colour(name) {
  if (!colours.has(name)) {
    if (probe === null) {
      probe = document.createElement("i");
      probe.hidden = true;
      // A canvas draws in these, whatever colours the system has.
      probe.style.setProperty("forced-color-adjust", "none");
      document.body.append(probe);
    }
    probe.style.color = `var(${name})`;
    colours.set(name, getComputedStyle(probe).color);
  }
  return colours.get(name);
}
