// The one time zone of the page: that of the store's deleteWhen, else the browser's, or what a person chose.

import { store, stored } from "./storage.js";

const KEY = "storage-engine.zone";
const listeners = new Set();
let ofStore = null;
let chosen = valid(stored(KEY)) ? stored(KEY) : "";

function valid(name) {
  if (!name) return false;
  try {
    new Intl.DateTimeFormat("en", { timeZone: name });
    return true;
  } catch {
    return false;
  }
}

/** Return the browser's zone. */
export function browserZone() {
  return Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
}

/** Return the zone that every time on the page is in. */
export function zone() {
  return chosen || ofStore || browserZone();
}

/** Return the zones that may be chosen, with the word for each; one that was chosen at another store is one. */
export function zones() {
  const found = [["zone_store", ofStore], ["zone_browser", browserZone()], ["zone_utc", "UTC"], ["zone_chosen", chosen]];
  return found.filter(([, name], at) => name && found.findIndex(([, other]) => other === name) === at);
}

/** Take the zone of the store that is shown; null: none is, or it isn't known. Return whether times change by it. */
export function takeStoreZone(name) {
  const before = zone();
  ofStore = valid(name) ? name : null;
  return zone() !== before;
}

/** Show times in this zone from now on. */
export function chooseZone(name) {
  chosen = name;
  store(KEY, name);
  for (const listener of listeners) listener();
}

/** Call a function after each choice. */
export function onZone(listener) {
  listeners.add(listener);
}
