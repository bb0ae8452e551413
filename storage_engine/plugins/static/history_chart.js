// What happened in a store, as the chart shows it.

import { reportUrl } from "./api.js";
import { bytes } from "./format.js";
import { counted, named, t } from "./language.js";
import { shortened } from "./meter.js";
import { lagPane, levelLines, levelPane, retentionPane } from "./panes.js";

const PATH_DASHES = [undefined, [6, 3], [2, 2], [8, 3, 2, 3]];

/** Return the model of a chart's answer. */
export function historyModel(answer, { store, path: root }, startMs, endMs) {
  const paths = Object.keys(answer.levels);
  const levels = paths.map((path, n) => ({
    label: paths.length > 1 ? shortened(path, root) : t("level"),
    values: answer.levels[path],
    colour: "--level",
    fill: n === 0 ? "--level-fill" : undefined,
    dash: PATH_DASHES[n % PATH_DASHES.length],
  }));
  const hasLag = answer.archive_lag_bytes.some((value) => value !== null);
  return {
    start_ms: startMs,
    end_ms: endMs,
    times_ms: answer.times_ms,
    panes: [
      retentionPane([{ label: t("retention"), values: answer.retention_ms, colour: "--retention", width: 2 }], 168),
      levelPane(levels, levelLines(answer.rules), 190),
      ...(hasLag ? [lagPane(answer.archive_lag_bytes, 72)] : []),
    ],
    spans: [
      { kind: "window", label: t("span_window"), spans: answer.windows },
      { kind: "refused", label: t("span_refused"), spans: answer.refused },
    ],
    marks: [...answer.cleanups.map((one) => cleanupMark(one, store)), ...(answer.drift ?? []).map(driftMark)].sort(
      (one, other) => one.at_ms - other.at_ms,
    ),
    empty: t("chart_empty_history"),
  };
}

const BAD = new Set(["failed", "unfinished", "blocked", "released-in-part"]);

function cleanupMark(one, store) {
  const causes = one.causes ?? [];
  const went = one.deleted_segments
    ? t("mark_went", { segments: counted("segments", one.deleted_segments), size: bytes(one.freed_bytes) })
    : t("mark_nothing_went");
  const [dag, run] = splitKey(one.run_key);
  const said = { causes: causes.map((cause) => named("cause", cause)).join(t("and")) || t("unknown") };
  const isOne = one.runs === 1;
  return {
    at_ms: one.at_ms,
    until_ms: one.until_ms,
    count: one.runs,
    cause: causes.length > 1 ? "several" : (causes[0] ?? "manual"),
    label: isOne ? t("mark_cleanup", said) : `${counted("marks_together", one.runs)}: ${said.causes}`,
    text: `${went} ${t("mark_outcome", { outcome: named("outcome", one.outcome ?? "open") })}`,
    tone: BAD.has(one.outcome) ? "bad" : one.outcome === "done" ? "done" : "quiet",
    href: isOne && reportUrl(store, { dag_id: one.dag_id ?? dag, run_id: one.run_id ?? run, has_report: one.has_report }),
  };
}

function driftMark(one) {
  const label = one.times === 1 ? t("mark_drift") : `${t("mark_drift")}: ${one.times} ×`;
  return { at_ms: one.at_ms, until_ms: one.until_ms, count: one.times, cause: "several", label, text: one.what, tone: "bad", href: null };
}

/** Return DAG and run of a key that Airflow's runs have; a run at a shell has no DAG. */
export function splitKey(key) {
  const at = key.indexOf("/");
  return at > 0 ? [key.slice(0, at), key.slice(at + 1)] : [null, null];
}
