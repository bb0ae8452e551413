// Both courses of a what-if: as today, and as changed.

import { h } from "./dom.js";
import { bytes, duration, number, percent } from "./format.js";
import { counted, named, t } from "./language.js";
import { levelLines, levelPane, retentionPane } from "./panes.js";
import { scrolling, table } from "./table.js";

/** Return the model of a what-if's answer. */
export function courseModel({ today, changed, levels, windows }) {
  const tables = [withSteps(today), withSteps(changed)];
  const [times, todayLevel, todayRetention, level, retention] = window.uPlot.join(tables, [[2, 2, 2], [2, 2, 2]]);
  const filled = [todayLevel, todayRetention, level, retention].map((values) => between(times, values));
  const lines = levels?.changed ? levelLines([{ at_ms: times[0], ...levels.changed }]) : [];
  return {
    start_ms: times[0] ?? 0,
    end_ms: times[times.length - 1] ?? 1,
    times_ms: times,
    panes: [
      retentionPane(
        [
          { label: t("retention_now"), values: filled[1], colour: "--today", dash: [5, 4] },
          { label: t("retention_changed"), values: filled[3], colour: "--retention", width: 2 },
        ],
        150,
      ),
      levelPane(
        [
          { label: t("level_now"), values: filled[0], colour: "--today", dash: [5, 4] },
          { label: t("level_changed"), values: filled[2], colour: "--level", fill: "--level-fill", width: 2 },
        ],
        lines,
        200,
      ),
    ],
    spans: [
      { kind: "window", label: t("span_window"), spans: windows ?? [] },
      { kind: "refused", label: t("span_refused"), spans: changed.refused },
    ],
    marks: deletions(changed),
  };
}

/** Two points of one moment are before and behind a deletion: the second one comes a millisecond later. */
function withSteps(course) {
  const times = [];
  for (const ms of course.times_ms) times.push(times.length > 0 && ms <= times[times.length - 1] ? times[times.length - 1] + 1 : ms);
  return [times, course.used_percent, course.retention_ms];
}

/** Fill in the moments that only the other course has, by the straight line on which they lie. */
function between(times, values) {
  const filled = [...values];
  let before = -1;
  for (let n = 0; n < filled.length; n += 1) {
    if (filled[n] === null || filled[n] === undefined) continue;
    if (before >= 0 && n - before > 1) {
      const slope = (filled[n] - filled[before]) / (times[n] - times[before]);
      for (let k = before + 1; k < n; k += 1) filled[k] = filled[before] + slope * (times[k] - times[before]);
    }
    before = n;
  }
  return filled.map((value) => value ?? null);
}

function deletions(course) {
  return course.deletions.map((one) => ({
    at_ms: one.at_ms,
    cause: one.causes.length > 1 ? "several" : (one.causes[0] ?? "manual"),
    label: t("mark_cleanup", { causes: one.causes.map((cause) => named("cause", cause)).join(t("and")) }),
    text: [
      t("mark_would_go", { segments: counted("segments", one.segments), size: bytes(one.size_bytes) }),
      one.unexpired_segments > 0 ? t("mark_unexpired", { segments: counted("segments", one.unexpired_segments) }) : "",
    ].join(" "),
    tone: one.unexpired_segments > 0 ? "bad" : "done",
    href: null,
  }));
}

/** Return the figures of both courses beside each other. */
export function courseFigures({ today, changed }) {
  const rows = [
    ["highest_level", "highest_percent", percent, 1],
    ["shortest_retention", "shortest_retention_ms", duration, -1],
    ["refused_for", "refused_ms", (ms) => (ms === 0 ? t("never") : duration(ms)), 1],
    ["deleted_size", "deleted_bytes", bytes, 0],
    ["unexpired", "unexpired_segments", (count) => number(count), 1],
  ];
  const columns = [
    { title: t("figure"), isHead: true, cell: ([name]) => t(name) },
    { title: t("as_now"), class: "num", cell: ([, key, text]) => text(today.summary[key]) },
    { title: t("as_changed"), class: "num", cell: ([, key, text]) => h("b", null, text(changed.summary[key])) },
    { title: t("change"), cell: ([, key, , worse]) => verdict(today.summary[key], changed.summary[key], worse) },
  ];
  return scrolling(t("what_if_compared"), table({ columns, rows, caption: t("what_if_compared") }));
}

function verdict(before, after, worse) {
  if (before === after) return h("span", { class: "dim" }, t("same"));
  const sign = after > before ? "↑" : "↓";
  if (worse === 0) return h("span", null, sign, " ", t(after > before ? "more" : "less"));
  const isWorse = Math.sign(after - before) === worse;
  return h("span", { class: isWorse ? "tone-bad" : "tone-ok" }, sign, " ", t(isWorse ? "worse" : "better"));
}
