// A box that says in one sentence how something is, and more of it below.

import { h } from "./dom.js";
import { stateIcon } from "./icons.js";

/** @param tone urgent, warning or ok; the first two are read out at once. */
export function notice(tone, title, ...more) {
  return h(
    "div",
    { class: `notice notice-${tone}`, role: tone === "ok" ? "status" : "alert" },
    stateIcon(tone),
    h("div", null, h("p", { class: "notice-title" }, title), ...more),
  );
}
