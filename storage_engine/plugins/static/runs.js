// Runs with their reports, the newest first.

import { airflowUrl, ask, ofStore, reportUrl } from "./api.js";
import { h, replace } from "./dom.js";
import { bytes, day, duration, moment, number } from "./format.js";
import { stateIcon } from "./icons.js";
import { counted, named, t } from "./language.js";
import { poll } from "./poll.js";
import { emptyBox, problemBox, waiting } from "./problem.js";
import { openInAirflow } from "./router.js";
import { scrolling, table } from "./table.js";

const ASK_AGAIN_MS = 30_000;
const FIRST = 12;
const STATES = { done: "ok", "nothing-to-do": "ok", "dry-run": "note", failed: "urgent", unfinished: "warning", blocked: "warning", "released-in-part": "warning", undone: "note" };

/** Show a store's runs in `host`; return what ends it. */
export function showRuns(host, { store }) {
  const older = [];
  let newest = null;
  let isAll = false;
  let most = FIRST;
  replace(host, waiting());

  async function load() {
    try {
      const { runs } = await ask(ofStore(store, "runs"));
      if (newest === runs) return;
      newest = runs;
      paint();
    } catch (error) {
      replace(host, problemBox(error, load, { quiet: newest !== null }));
      throw error;
    }
  }

  async function more() {
    const all = [...newest, ...older];
    const isHidden = most < folded(all).length;
    most = Infinity;
    if (isHidden) {
      paint();
      return;
    }
    const { runs } = await ask(ofStore(store, "runs"), { query: { before_id: all[all.length - 1].id } });
    isAll = runs.length === 0;
    older.push(...runs);
    paint();
  }

  function paint() {
    const seen = new Set();
    const rows = folded([...newest, ...older].filter((run) => !seen.has(run.run_key) && seen.add(run.run_key)));
    if (rows.length === 0) {
      replace(host, emptyBox(t("runs_empty"), t("runs_empty_do")));
      return;
    }
    replace(
      host,
      scrolling(t("runs_title"), table({ columns: columnsOf(store), rows: rows.slice(0, most), caption: t("runs_title") })),
      isAll && rows.length <= most ? null : h("button", { type: "button", class: "button", "data-key": "older", on: { click: more } }, t("older_runs")),
    );
  }

  return poll(load, ASK_AGAIN_MS);
}

/** Return runs with those as one that a DAG only recorded on one day: they come to no report. */
function folded(runs) {
  const days = new Map();
  const found = [];
  for (const run of runs) {
    if (!run.dag_id || run.outcome !== null || run.state !== "open") {
      found.push(run);
      continue;
    }
    const key = JSON.stringify([run.dag_id, day(run.created_at_ms)]);
    if (!days.has(key)) {
      days.set(key, { ...run, folded: [] });
      found.push(days.get(key));
    }
    days.get(key).folded.push(run);
  }
  return found;
}

function columnsOf(store) {
  return [
    { title: t("begun"), isHead: true, class: "nowrap", cell: (run) => moment(run.created_at_ms) },
    { title: t("outcome"), cell: (run) => (run.folded?.length > 1 ? recorded(store, run.folded) : outcome(run)) },
    { title: t("causes"), cell: (run) => run.causes.map((cause) => named("cause", cause)).join(t("and")) },
    { title: t("deleted"), class: "num", cell: (run) => (run.deleted_segments === null ? "" : number(run.deleted_segments)) },
    { title: t("freed"), class: "num", cell: (run) => (run.freed_bytes === null ? "" : bytes(run.freed_bytes)) },
    { title: t("took"), class: "num", cell: (run) => (run.finished_at_ms === null ? "" : duration(run.finished_at_ms - run.created_at_ms)) },
    { title: t("report"), cell: (run) => links(store, run) },
  ];
}

/** Return runs that only recorded something, with what leads to each. */
function recorded(store, runs) {
  const from = moment(runs[runs.length - 1].created_at_ms);
  return h(
    "details",
    { "data-key": `recorded-${runs[runs.length - 1].id}` },
    h("summary", { "data-key": `recorded-summary-${runs[runs.length - 1].id}` }, counted("recorded_runs", runs.length, { from })),
    h("ul", { class: "plain" }, runs.map((run) => h("li", null, moment(run.created_at_ms), " ", links(store, run)))),
  );
}

/** Return the outcome of a run with its sign. */
export function outcome(run) {
  return h("span", { class: "with-icon" }, stateIcon(STATES[run.outcome] ?? "unknown"), named("outcome", run.outcome ?? run.state));
}

/** Return the links of a run: to its report, and to its page in Airflow. */
export function links(store, run) {
  const report = reportUrl(store, run);
  const page = run.dag_id && run.run_id ? airflowUrl(`dags/${encodeURIComponent(run.dag_id)}/runs/${encodeURIComponent(run.run_id)}`).href : null;
  const follow = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    openInAirflow(page);
  };
  return h(
    "span",
    { class: "links" },
    report ? h("a", { href: report }, t("report")) : h("span", { class: "dim" }, t("no_report")),
    page ? h("a", { href: page, on: { click: follow } }, t("dag_run")) : null,
  );
}
