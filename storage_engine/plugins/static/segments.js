// Segments with where they are and why, as runs of those that share both.

import { h, renew } from "./dom.js";
import { bytes, number } from "./format.js";
import { named, t } from "./language.js";
import { placeOf } from "./strip.js";
import { scrolling, table } from "./table.js";

const MOST_ROWS = 200;

/** Fill `host` with the segments of a store. */
export function segmentsBlock(host, { ranges, totals }) {
  if (!ranges || ranges.length === 0) {
    renew(host);
    return;
  }
  const count = totals.reduce((sum, one) => sum + one.segments, 0);
  const rows = ranges.slice(0, MOST_ROWS);
  const columns = [
    { title: t("where"), isHead: true, cell: (range) => h("span", null, h("i", { class: `swatch part-${placeOf(range)}` }), t(`where_${placeOf(range)}`)) },
    { title: t("from_offset"), class: "num", cell: (range) => number(range.start_offset) },
    { title: t("to_offset"), class: "num", cell: (range) => number(range.end_offset) },
    { title: t("segments_head"), class: "num", cell: (range) => number(range.segments) },
    { title: t("size"), class: "num", cell: (range) => (range.segments > 0 ? bytes(range.size_bytes) : "") },
    { title: t("reason"), cell: (range) => reason(range) },
  ];
  const several = new Set(ranges.map((range) => range.log)).size > 1;
  if (several) columns.unshift({ title: t("log"), isHead: true, cell: (range) => range.log });
  renew(
    host,
    h(
      "details",
      { "data-key": "segments" },
      h("summary", { "data-key": "segments-summary" }, t("segments_title"), " ", h("span", { class: "dim" }, number(count))),
      scrolling(t("segments_title"), table({ columns, rows, caption: t("segments_title") })),
      ranges.length > rows.length ? h("p", { class: "dim small" }, t("ranges_more", { shown: number(rows.length) })) : null,
    ),
  );
}

function reason(range) {
  if (!range.reason) return range.detail ?? "";
  const word = named("reason", range.reason);
  // A broker's own word, of which the page has none.
  const told = word === range.reason ? word.replaceAll("-", " ") : word;
  return h("span", null, told, range.detail ? h("small", { class: "dim" }, ` ${range.detail}`) : null);
}
