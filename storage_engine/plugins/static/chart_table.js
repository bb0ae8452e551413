// The data of a chart as a table, made when somebody opens it.

import { h, replace } from "./dom.js";
import { moment } from "./format.js";
import { t } from "./language.js";

/** Return the part of a chart that folds out into a table of what is in sight. */
export function dataTable(chart) {
  const place = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": t("chart_table") });
  const note = h("span", { class: "dim" });
  const details = h(
    "details",
    { class: "chart-table", on: { toggle: () => fill() } },
    h("summary", null, t("chart_table"), " ", note),
    place,
  );

  function fill() {
    if (!details.open || !chart.model) return;
    const { times_ms: times, panes } = chart.model;
    const series = panes.flatMap((pane) => pane.series.map((one) => ({ ...one, text: pane.text })));
    const rows = [];
    for (let n = times.length - 1; n >= 0; n -= 1) {
      if (times[n] < chart.start || times[n] > chart.end) continue;
      const cells = series.map((one) => h("td", { class: "num" }, one.text(one.values[n] ?? null)));
      rows.push(h("tr", null, h("th", { scope: "row" }, moment(times[n])), cells));
    }
    const head = [t("time"), ...series.map((one) => one.label)];
    replace(
      place,
      h(
        "table",
        null,
        h("thead", null, h("tr", null, head.map((text, n) => h("th", { scope: "col", class: n ? "num" : "" }, text)))),
        h("tbody", null, rows),
      ),
    );
  }

  return {
    element: details,
    refresh() {
      note.textContent = chart.countText();
      fill();
    },
  };
}
