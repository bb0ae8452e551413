// The strip of offsets: what is local, in both places, archived, expired, not archived, due or lost, in the order of the log.

import { h } from "./dom.js";
import { bytes, number, offsets } from "./format.js";
import { counted, t } from "./language.js";
import { notice } from "./notice.js";
import { emptyBox } from "./problem.js";

const PLACES = ["expired", "not_archived", "archived", "both", "due", "local", "unknown", "accepted", "lost"];
const WORST = ["lost", "unknown", "accepted", "due"];
const MOST_AT_ONCE = 12;
const MOST_LOSSES = 5;
const LEAST_SHARE = 0.01;

/** Return the place of a range as the page names it: a loss that somebody has accepted is one of its own. */
export function placeOf(range) {
  return range.where === "lost" && range.reason === "accepted" ? "accepted" : range.where;
}

/** Return the ranges of each log, in order. */
export function byLog(ranges) {
  const logs = new Map();
  for (const range of ranges) {
    const name = JSON.stringify([range.log, range.lineage]);
    if (!logs.has(name)) logs.set(name, []);
    logs.get(name).push(range);
  }
  return [...logs.values()].map((all) => all.sort((one, other) => one.start_offset - other.start_offset));
}

/** Return what is lost, for the top of a page; null: nothing is. */
export function lossLines({ ranges }) {
  const lost = (ranges ?? []).filter((range) => placeOf(range) === "lost");
  if (lost.length === 0) return null;
  const several = byLog(ranges).length > 1;
  return h(
    "div",
    { class: "findings losses" },
    lost.slice(0, MOST_LOSSES).map((range) => lossLine(range, several)),
    lost.length > MOST_LOSSES ? h("p", { class: "tone-bad" }, counted("more_losses", lost.length - MOST_LOSSES)) : null,
  );
}

/** Return the strips of a store, the worst logs first where there are many, and totals beside their keys. */
export function stripBlock({ ranges, totals, logs }) {
  if (!ranges || ranges.length === 0) return emptyBox(t("strip_empty"), t("strip_empty_do"));
  const all = byLog(ranges);
  const several = all.length > 1;
  const worstFirst = all.length > MOST_AT_ONCE ? all.map((one) => [rank(one), one]).sort(([a], [b]) => a - b).map(([, one]) => one) : all;
  const [shown, rest] = [worstFirst.slice(0, MOST_AT_ONCE), worstFirst.slice(MOST_AT_ONCE)];
  return h(
    "div",
    null,
    h("div", { class: several ? "strips strips-many" : "strips" }, shown.map((one) => strip(one, several))),
    rest.length > 0
      ? h(
          "details",
          { "data-key": "more-logs" },
          h("summary", { "data-key": "more-logs-summary" }, counted("more_logs", rest.length)),
          h("div", { class: "strips strips-many" }, rest.map((one) => strip(one, several))),
        )
      : null,
    logs > all.length ? h("p", { class: "dim small" }, t("logs_left_out", { shown: number(all.length), all: number(logs) })) : null,
    legend(totals),
  );
}

/** Return how urgent a log is: by its worst range. */
function rank(all) {
  return Math.min(...all.map((range) => (WORST.includes(placeOf(range)) ? WORST.indexOf(placeOf(range)) : WORST.length)));
}

function lossLine(range, several) {
  const said = { log: range.log, offsets: offsets(range.start_offset, range.end_offset) };
  return notice(
    "urgent",
    t(several ? "lost_line_of" : "lost_line", said),
    range.detail ? h("p", null, range.detail) : null,
    h("p", { class: "dim" }, t("lost_do")),
  );
}

/** Return ranges with those as one that follow each other in one place: why they are there stands in the table. */
function joined(all) {
  const found = [];
  for (const range of all) {
    const last = found[found.length - 1];
    const isSame = last && placeOf(last) === placeOf(range) && last.end_offset === range.start_offset && range.where !== "lost";
    if (isSame) {
      const [segments, size] = [last.segments + range.segments, last.size_bytes + range.size_bytes];
      found[found.length - 1] = { ...last, end_offset: range.end_offset, segments, size_bytes: size };
    } else {
      found.push(range);
    }
  }
  return found;
}

function strip(all, several) {
  const [first, last] = [all[0], all[all.length - 1]];
  const log = first.log || t("the_log");
  const widths = all.map((range) => Math.sqrt(range.size_bytes));
  const least = Math.max(1, LEAST_SHARE * widths.reduce((sum, width) => sum + width, 0));
  const size = all.reduce((sum, range) => sum + (range.where === "archived" ? 0 : range.size_bytes), 0);
  return h(
    "div",
    { class: "strip-of-log" },
    h("div", { class: "strip-name dim", title: t("strip_log", { log, lineage: first.lineage ?? 0 }) }, several && (first.lineage ?? 0) <= 1 ? log : t("strip_log", { log, lineage: first.lineage ?? 0 })),
    h("ol", { class: "strip", "aria-label": t("strip_label", { log }) }, joined(all).map((range) => part(range, least))),
    several
      ? h("div", { class: "strip-size dim" }, t("on_disk", { size: bytes(size) }))
      : h("div", { class: "strip-ends dim" }, h("span", null, t("offset", { offset: number(first.start_offset) })), h("span", null, t("offset", { offset: number(last.end_offset) }))),
  );
}

function part(range, least) {
  const place = placeOf(range);
  const word = t(`where_${place}`);
  // What is nowhere has no file, and so no size: offsets alone say how much it was.
  const size = range.segments > 0 ? [bytes(range.size_bytes), counted("segments", range.segments)] : [];
  const why = ["accepted", "expired", "not_archived", "lost", "unknown"].includes(place) ? range.detail : "";
  const text = `${word}: ${[...size, t("offsets", { offsets: offsets(range.start_offset, range.end_offset) }), why].filter(Boolean).join(", ")}`;
  return h(
    "li",
    { class: `part part-${place}`, title: text, vars: { "--size": String(Math.max(least, Math.sqrt(range.size_bytes))) } },
    h("span", { class: "part-word" }, word),
    h("span", { class: "hidden-text" }, text),
  );
}

function legend(totals) {
  return h(
    "ul",
    { class: "legend strip-legend" },
    PLACES.map((place) => {
      const of = totals.find((one) => one.place === place);
      if (!of && place !== "lost") return null;
      const much = !of ? t("no_range") : of.segments === 0 ? counted("ranges", of.ranges) : `${bytes(of.size_bytes)}, ${counted("segments", of.segments)}`;
      return h(
        "li",
        { class: place === "lost" && of ? "is-lost" : null },
        h("i", { class: `swatch part-${place}` }),
        h("span", null, h("b", null, t(`where_${place}`)), ` ${much}`),
        h("small", { class: "dim" }, t(`where_${place}_means`)),
      );
    }),
  );
}
