// What a page says where an answer doesn't come, or says nothing yet: what is wrong, and what to do.

import { h } from "./dom.js";
import { t } from "./language.js";
import { notice } from "./notice.js";

function advice(error) {
  if (error.status === 0) return ["problem_network", "problem_network_do"];
  if (error.status === 401) return ["problem_login", "problem_login_do"];
  if (error.status === 403 || error.status === 404) return ["problem_none", "problem_none_do"];
  if (error.status === 429) return ["problem_busy", "problem_busy_do"];
  if (error.status === 503) return ["problem_journal", "problem_journal_do"];
  return ["problem_server", "problem_server_do"];
}

/** Say what went wrong, with the server's own sentence, and offer to ask again. */
export function problemBox(error, again, { quiet = false } = {}) {
  const [what, todo] = error.status === undefined ? ["problem_page", "problem_page_do"] : advice(error);
  return notice(
    quiet ? "warning" : "urgent",
    quiet ? t("problem_stale") : t(what),
    error.detail ? h("p", null, error.detail) : null,
    h("p", { class: "dim" }, t(todo)),
    again ? h("button", { type: "button", class: "button", on: { click: () => again() } }, t("ask_again")) : null,
  );
}

/** Say that there is nothing here, and what would bring something. */
export function emptyBox(what, todo, ...more) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, what), h("p", { class: "dim" }, todo), more);
}

/** Say that an answer is awaited. */
export function waiting() {
  return h("p", { class: "waiting", role: "status" }, t("waiting"));
}
