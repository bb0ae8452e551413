// Tables that sort by their heads.

import { h } from "./dom.js";

/**
 * Return a table. A column has: title, cell(row), and where it can be sorted by: key(row), `descends` first.
 * `sort` is {column, descending}; `onSort` gets the next one.
 */
export function table({ columns, rows, caption, sort = null, onSort = null, rowProps = null, className = "" }) {
  const heads = columns.map((column, n) => {
    const isSorted = sort?.column === n;
    const order = isSorted ? (sort.descending ? "descending" : "ascending") : undefined;
    if (!column.key || !onSort) return h("th", { scope: "col", class: column.class }, column.title);
    const next = { column: n, descending: isSorted ? !sort.descending : Boolean(column.descends) };
    const sign = h("span", { class: "sort-sign", "aria-hidden": "true" }, isSorted ? (sort.descending ? "↓" : "↑") : "↕");
    return h(
      "th",
      { scope: "col", class: column.class, "aria-sort": order },
      h("button", { type: "button", class: "sort", "data-key": `sort-${n}`, on: { click: () => onSort(next) } }, column.title, sign),
    );
  });
  const body = sorted(rows, columns, sort).map((row) =>
    h(
      "tr",
      rowProps?.(row) ?? null,
      columns.map((column) => h(column.isHead ? "th" : "td", { class: column.class, scope: column.isHead ? "row" : undefined, "data-label": column.title }, column.cell(row))),
    ),
  );
  return h(
    "table",
    { class: className },
    caption ? h("caption", { class: "hidden-text" }, caption) : null,
    h("thead", null, h("tr", null, heads)),
    h("tbody", null, body),
  );
}

/** Return rows in order; what isn't known comes last, whichever way. */
export function sorted(rows, columns, sort) {
  const key = sort === null ? null : columns[sort.column]?.key;
  if (!key) return rows;
  const sign = sort.descending ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [key(one), key(other)];
    if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;
    if (b === null || b === undefined) return -1;
    return typeof a === "string" ? sign * a.localeCompare(b) : sign * (a - b);
  });
}

/** Return a table in a frame that scrolls by itself where it is too wide, by key as well. */
export function scrolling(label, inner) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, inner);
}
