// The strip of offsets: what is local, in both places, archived, due or lost, in the order of the log.

import { h } from "./dom.js";
import { bytes, offsets } from "./format.js";
import { counted, t } from "./language.js";
import { notice } from "./notice.js";
import { emptyBox } from "./problem.js";

const PLACES = ["archived", "both", "due", "local", "unknown", "accepted", "lost"];

/** Return the place of a range as the page names it: a loss that somebody has accepted is one of its own. */
export function placeOf(range) {
  return range.where === "lost" && range.reason === "accepted" ? "accepted" : range.where;
}

/** Return the ranges of each log, in order. */
export function byLog(ranges) {
  const logs = new Map();
  for (const range of ranges) {
    const name = JSON.stringify([range.log, range.lineage]);
    logs.set(name, [...(logs.get(name) ?? []), range]);
  }
  return [...logs.values()].map((all) => [...all].sort((one, other) => one.start_offset - other.start_offset));
}

/** Return the strips of a store, with what is lost said first, and totals beside their keys. */
export function stripBlock({ ranges }) {
  if (!ranges || ranges.length === 0) return emptyBox(t("strip_empty"), t("strip_empty_do"));
  const lost = ranges.filter((range) => placeOf(range) === "lost");
  return h(
    "div",
    null,
    lost.map((range) => lossLine(range)),
    byLog(ranges).map((all) => strip(all)),
    totals(ranges),
  );
}

function lossLine(range) {
  return notice(
    "urgent",
    t("lost_line", { offsets: offsets(range.start_offset, range.end_offset) }),
    range.detail ? h("p", null, range.detail) : null,
    h("p", { class: "dim" }, t("lost_do")),
  );
}

function strip(all) {
  const [first, last] = [all[0], all[all.length - 1]];
  return h(
    "div",
    { class: "strip-of-log" },
    h("div", { class: "strip-name dim" }, t("strip_log", { log: first.log || t("the_log"), lineage: first.lineage ?? 0 })),
    h("ol", { class: "strip", "aria-label": t("strip_label", { log: first.log || t("the_log") }) }, all.map((range) => part(range))),
    h("div", { class: "strip-ends dim" }, h("span", null, bytes(first.start_offset, 2)), h("span", null, bytes(last.end_offset, 2))),
  );
}

function part(range) {
  const place = placeOf(range);
  const word = t(`where_${place}`);
  // What is nowhere has no file, and so no size: offsets alone say how much it was.
  const size = range.segments > 0 ? [bytes(range.size_bytes), counted("segments", range.segments)] : [];
  const why = place === "accepted" || place === "lost" ? range.detail : "";
  const text = `${word}: ${[...size, offsets(range.start_offset, range.end_offset), why].filter(Boolean).join(", ")}`;
  return h(
    "li",
    { class: `part part-${place}`, title: text, vars: { "--size": String(Math.max(1, Math.sqrt(range.size_bytes / 1048576))) } },
    h("span", { class: "part-word" }, word),
    h("span", { class: "hidden-text" }, text),
  );
}

function totals(ranges) {
  return h(
    "ul",
    { class: "legend strip-legend" },
    PLACES.map((where) => {
      const of = ranges.filter((range) => placeOf(range) === where);
      const size = of.reduce((sum, range) => sum + (range.size_bytes ?? 0), 0);
      const count = of.reduce((sum, range) => sum + (range.segments ?? 0), 0);
      if (of.length === 0 && where !== "lost") return null;
      return h(
        "li",
        { class: where === "lost" && of.length > 0 ? "is-lost" : null },
        h("i", { class: `swatch part-${where}` }),
        h("span", null, h("b", null, t(`where_${where}`)), of.length > 0 && count === 0 ? ` ${counted("ranges", of.length)}` : ` ${bytes(size)}${count ? `, ${counted("segments", count)}` : ""}`),
        h("small", { class: "dim" }, t(`where_${where}_means`)),
      );
    }),
  );
}
