// What the browser keeps for this origin; a browser may forbid it.

/** Return what is kept under a key; null: nothing, or it may not be read. */
export function stored(key) {
  try {
    return window.localStorage.getItem(key);
  } catch {
    return null;
  }
}

/** Keep a text under a key, where that is allowed. */
export function store(key, text) {
  try {
    window.localStorage.setItem(key, text);
  } catch {
    // The choice holds until the page is left.
  }
}
