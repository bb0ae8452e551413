// The level of each path as a bar, with its state in words.

import { h } from "./dom.js";
import { bytes, percent } from "./format.js";
import { named, t } from "./language.js";

const QUIET = new Set(["ok", "no-level"]);

/** Return a bar for each path; one below the store's own is named by what stands behind that. */
export function levels(all, root) {
  if (all.length === 0) return h("span", { class: "dim" }, t("unknown"));
  return h("div", { class: "meters" }, all.map((level) => meter(level, all.length > 1 ? shortened(level.path, root) : "")));
}

/** Return a path without the store's own. */
export function shortened(path, root) {
  // A store that is named by a file has its paths beside it.
  const above = root?.slice(0, root.lastIndexOf("/"));
  const own = [root, above].find((one) => one && path.startsWith(`${one}/`));
  return own ? path.slice(own.length + 1) : path;
}

function meter(level, name) {
  const isKnown = level.used_percent !== null && level.used_percent !== undefined;
  const word = named("level_state", level.state);
  const free = Number.isFinite(level.usable_bytes) ? t("free", { size: bytes(level.usable_bytes) }) : "";
  const title = [level.path, word, free, level.error].filter(Boolean).join(" · ");
  return h(
    "div",
    { class: `meter meter-${level.state}`, title },
    h("span", { class: "meter-value" }, isKnown ? percent(level.used_percent) : t("unknown")),
    h("span", { class: "meter-bar", "aria-hidden": "true" }, h("i", { vars: { "--used": `${isKnown ? level.used_percent : 0}%` } })),
    QUIET.has(level.state) ? null : h("span", { class: "meter-state" }, word),
    name ? h("span", { class: "meter-path dim" }, name) : null,
  );
}
