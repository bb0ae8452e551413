// What the page asks: the plugin's own routes, and Airflow's REST API in the user's name. Nothing else.

const kept = new Map();
const MOST_KEPT = 40;

/** An answer that is none: `status` is 0 where nothing answered; `detail` is the server's sentence, or "". */
export class ApiError extends Error {
  constructor(status, detail) {
    super(detail || String(status));
    this.status = status;
    this.detail = detail;
  }
}

async function call(url, options) {
  let response;
  try {
    response = await fetch(url, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "");
  }
  if (response.status === 304) return { response, body: null };
  let body = null;
  try {
    body = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (response.ok) throw new ApiError(response.status, "");
  }
  if (!response.ok) {
    const detail = body?.detail ?? body?.problem ?? "";
    throw new ApiError(response.status, typeof detail === "string" ? detail : JSON.stringify(detail));
  }
  return { response, body };
}

/** Return an answer of the plugin; the same object where nothing has changed since. */
export async function ask(path, { query, signal } = {}) {
  const url = new URL(`api/${path}`, document.baseURI);
  url.hash = "";
  for (const [name, value] of Object.entries(query ?? {})) if (value !== undefined) url.searchParams.set(name, value);
  const before = kept.get(url.href);
  const { response, body } = await call(url, { signal, headers: before ? { "If-None-Match": before.etag } : {} });
  if (body === null) return before.body;
  const etag = response.headers.get("ETag");
  if (etag) {
    kept.set(url.href, { etag, body });
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  }
  return body;
}

/** Send a question that has a body to the plugin, which stores nothing of it. */
export async function send(path, body, { signal } = {}) {
  const url = new URL(`api/${path}`, document.baseURI);
  return (await call(url, json(body, signal))).body;
}

/** Return where Airflow is served, which may be below a path. */
export function airflowUrl(path) {
  return new URL(`../../${path}`, document.baseURI);
}

/** Ask Airflow's REST API with the user's cookie. */
export async function askAirflow(path) {
  return (await call(airflowUrl(`api/v2/${path}`), {})).body;
}

/** Post to Airflow's REST API with the user's cookie. */
export async function postToAirflow(path, body) {
  return (await call(airflowUrl(`api/v2/${path}`), json(body))).body;
}

/** Return the address of the page of what a store's lakes keep. */
export function keepUrl(store) {
  return new URL(`../keep?${new URLSearchParams({ store })}`, document.baseURI).href;
}

/** Return the address of a run's report; null: it has none that may be read here. */
export function reportUrl(store, run) {
  if (!run?.dag_id || !run.run_id || run.has_report === false) return null;
  const asked = new URLSearchParams({ store, dag_id: run.dag_id, run_id: run.run_id });
  return new URL(`../report?${asked}`, document.baseURI).href;
}

/** Return the path of a store's answers. */
export function ofStore(store, what = "") {
  return `stores/${encodeURIComponent(store)}${what ? `/${what}` : ""}`;
}

function json(body, signal) {
  return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
}
