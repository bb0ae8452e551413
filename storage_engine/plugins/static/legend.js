// What the shades, lines and marks of the chart mean.

import { h } from "./dom.js";
import { markIcon } from "./icons.js";
import { t } from "./language.js";

function entry(sign, text) {
  return h("li", null, sign, h("span", null, text));
}

/** Return the legend of what an answer has; what it has not is not explained. */
export function chartLegend(answer) {
  const causes = new Set(answer.cleanups.flatMap((one) => (one.causes.length > 1 ? ["several"] : one.causes)));
  const order = ["time-up", "space-full", "manual", "several"].filter((cause) => causes.has(cause));
  return h(
    "ul",
    { class: "legend" },
    order.map((cause) => entry(markIcon(cause), t(`legend_${cause.replace("-", "_")}`))),
    answer.windows.length > 0 ? entry(h("i", { class: "swatch swatch-window" }), t("span_window")) : null,
    answer.refused.length > 0 ? entry(h("i", { class: "swatch swatch-refused" }), t("span_refused")) : null,
  );
}
