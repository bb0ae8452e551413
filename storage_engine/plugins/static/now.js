// What a store is and was: the chart, the strip of offsets, and what stands for it.

import { h, renew, replace } from "./dom.js";
import { groupsBlock, topicsBlock } from "./consumers.js";
import { showHistory } from "./history.js";
import { t } from "./language.js";
import { showRuns } from "./runs.js";
import { segmentsBlock } from "./segments.js";
import { standingBlock } from "./standing.js";
import { stripBlock } from "./strip.js";

/** Return a part of a view, under a heading. */
export function block(title, ...children) {
  return h("section", { class: "block" }, h("h2", null, title), children);
}

/** Show a store as it is now; return what ends it. */
export function showNow(host, shared) {
  const chart = h("div");
  const strip = h("div");
  const segments = h("div");
  const [groups, topics] = [h("div"), h("div")];
  const standing = h("div");
  const runs = h("div");
  replace(
    host,
    h("section", { class: "block block-chart", "aria-label": t("chart_title") }, chart),
    block(t("strip_title"), strip, segments),
    h("div", { class: "columns" }, block(t("groups_title"), groups), block(t("topics_title"), topics)),
    block(t("standing_title"), standing),
    block(t("runs_title"), runs),
  );
  const endHistory = showHistory(chart, shared.now().row, shared.query);
  const endRuns = showRuns(runs, shared);
  shared.onAnswer((answer) => {
    renew(strip, stripBlock(answer));
    segmentsBlock(segments, answer);
    renew(groups, groupsBlock(answer));
    renew(topics, topicsBlock(answer));
    renew(standing, standingBlock(answer));
  });
  return () => {
    endHistory();
    endRuns();
  };
}
