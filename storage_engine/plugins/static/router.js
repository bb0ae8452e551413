// Which view is shown, in the fragment: deep links and the back button work, also inside Airflow's frame.

/** Return the view that the address names: `path` has its parts, `query` the rest. */
export function place() {
  const [path, query] = window.location.hash.replace(/^#/, "").split("?");
  return { path: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query ?? "") };
}

/** Return the address of a view. */
export function link(path, query) {
  const asked = new URLSearchParams(Object.entries(query ?? {}).filter(([, value]) => value !== undefined)).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${asked ? `?${asked}` : ""}`;
}

/** Write where the view is now into the address, with no step of its own for the back button. */
export function note(path, query) {
  window.history.replaceState(window.history.state, "", link(path, query));
  tellAirflow();
}

/** Go to a view. */
export function go(path, query) {
  window.location.hash = link(path, query);
}

/** Call a function for each view that the address names from now on. */
export function onPlace(listener) {
  window.addEventListener("hashchange", () => {
    tellAirflow();
    listener();
  });
}

/**
 * Write our address into Airflow's, whose page of a plugin is PAGE/PATH-OF-THE-FRAME. A tab has no place for it.
 */
export function tellAirflow() {
  const outer = airflowWindow();
  if (outer === null) return;
  const at = outer.location.pathname.indexOf(window.location.pathname);
  if (at <= 0) return;
  const page = outer.location.pathname.slice(0, at);
  const { pathname, search, hash } = window.location;
  outer.history.replaceState(outer.history.state, "", `${page}${pathname}${search}${hash}`);
}

/** Open a page of Airflow itself; from its frame, which may not move the window, by its own router. */
export function openInAirflow(url) {
  const outer = airflowWindow();
  if (outer === null) {
    window.location.assign(url);
    return;
  }
  const { pathname, search } = new URL(url);
  outer.history.pushState(null, "", `${pathname}${search}`);
  outer.dispatchEvent(new outer.PopStateEvent("popstate", { state: null }));
}

/** Return the window of Airflow round this frame; null: there is none, or it may not be touched. */
function airflowWindow() {
  if (window.parent === window) return null;
  try {
    return window.parent.location.origin === window.location.origin ? window.parent : null;
  } catch {
    return null;
  }
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
