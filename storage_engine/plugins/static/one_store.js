// One store: its head with figures and actions, and the view that its tabs choose.

import { actions } from "./acting.js";
import { ask, keepUrl, ofStore } from "./api.js";
import { showCalendar } from "./calendar.js";
import { breakable, h, renew, replace, withCommands } from "./dom.js";
import { showForecast } from "./forecast.js";
import { away, bytes, duration, moment, noRun, problemDetail, rowProblem, storePlace, timeToFull } from "./format.js";
import { stateIcon } from "./icons.js";
import { counted, named, t } from "./language.js";
import { levels } from "./meter.js";
import { showNow } from "./now.js";
import { poll } from "./poll.js";
import { problemBox, waiting } from "./problem.js";
import { link } from "./router.js";
import { lossLines } from "./strip.js";
import { showWhatIf } from "./what_if.js";
import { takeStoreZone } from "./zone.js";

const ASK_AGAIN_MS = 20_000;
const VIEWS = { "": showNow, forecast: showForecast, "what-if": showWhatIf, quality: showCalendar };

/**
 * Show a store in `host`; return what ends it. `onZone` is told with each answer whether the store's zone changes
 * times that are shown already.
 */
export function showStore(host, store, view, query, onZone) {
  const title = h("div", null, heading(store, null));
  const head = h("div");
  const problem = h("div");
  const tabs = h("nav", { class: "tabs", "aria-label": t("views") }, Object.keys(VIEWS).map((name) => tab(store, name, view)), h("a", { href: keepUrl(store), "data-key": "tab-keep" }, t("tab_keep")));
  const place = h("div", { class: "view" }, waiting());
  const listeners = new Set();
  const state = { answer: null, acting: null, ended: false };
  replace(host, title, head, problem, tabs, place);
  let endView = null;

  const shared = {
    store,
    query,
    now: () => state.answer,
    /** Call a function now and whenever the store's answer changes. */
    onAnswer(listener) {
      listeners.add(listener);
      if (state.answer !== null) listener(state.answer);
    },
  };

  async function load() {
    try {
      const answer = await ask(ofStore(store));
      // Somebody has gone on to another view meanwhile, which has a zone of its own.
      if (state.ended) return;
      replace(problem);
      if (answer === state.answer) return;
      state.answer = answer;
      onZone(takeStoreZone(answer.rules?.windows?.time_zone ?? null) && endView !== null);
      state.acting ??= actions(shared, load);
      if (state.shown !== answer.row.state) replace(title, heading(store, answer.row.state, state.acting.element));
      state.shown = answer.row.state;
      renew(head, lossLines(answer), facts(answer), olderLook(answer), urgentLines(answer, view === "" || !(view in VIEWS)));
      state.acting.show(answer);
      endView ??= (VIEWS[view] ?? showNow)(place, shared);
      for (const listener of listeners) listener(answer);
    } catch (error) {
      if (state.ended) return;
      replace(problem, problemBox(error, load, { quiet: state.answer !== null }));
      if (state.answer === null) replace(place);
      throw error;
    }
  }

  const endPoll = poll(load, ASK_AGAIN_MS);
  return () => {
    state.ended = true;
    endPoll();
    endView?.();
    state.acting?.end();
  };
}

function tab(store, name, view) {
  const isHere = name === (name in VIEWS && view in VIEWS ? view : "");
  const path = name ? ["store", store, name] : ["store", store];
  return h("a", { href: link(path), "aria-current": isHere ? "page" : undefined, "data-key": `tab-${name}` }, t(`tab_${name.replace("-", "_") || "now"}`));
}

function heading(store, state, acting) {
  return h(
    "header",
    { class: "view-head" },
    h("div", { class: "crumbs" }, h("a", { href: link([]), "data-key": "all-stores" }, t("all_stores"))),
    h("h1", { tabindex: "-1" }, state ? stateIcon(state) : null, store, state ? h("span", { class: `state state-${state}` }, t(`state_${state}`)) : null),
    acting ? h("div", { class: "tools" }, acting) : null,
  );
}

function fact(name, ...value) {
  return h("div", { class: "fact" }, h("dt", null, name), h("dd", null, value));
}

function facts({ row, now_ms: nowMs }) {
  const run = row.last_run;
  return h(
    "div",
    null,
    h("p", { class: "dim place" }, breakable([row.broker, storePlace(row)].filter(Boolean).join(" · ")), row.sampled_at_ms ? ` · ${t("sampled", { when: away(row.sampled_at_ms, nowMs) })}` : ""),
    h(
      "dl",
      { class: "facts" },
      fact(t("level"), levels(row.levels, row.path)),
      fact(t("retention"), duration(row.retention_ms)),
      fact(t("time_to_full"), timeToFull(row)),
      fact(t("archive_lag"), bytes(row.archive_lag_bytes)),
      fact(t("lagging_groups"), row.lagging_groups ?? t("unknown")),
      fact(
        t("last_run"),
        run ? named("outcome", run.outcome ?? run.state) : noRun(row),
        run ? h("small", { class: "dim", title: moment(run.created_at_ms) }, ` ${away(run.created_at_ms, nowMs)}`) : null,
      ),
    ),
  );
}

/** Say that what the page shows of the store is of before its last run's end. */
function olderLook({ row, findings, now_ms: nowMs }) {
  const ended = row.last_run?.finished_at_ms ?? null;
  if (ended === null || !findings || findings.at_ms >= ended) return null;
  return finding({ severity: "note", what: t("older_look", { run: away(ended, nowMs), look: away(findings.at_ms, nowMs) }), advice: t("older_look_do") });
}

/** Say what a person should know at once beside a loss: alarms, and what doctor says, the most urgent first; or only that one. */
function urgentLines({ row, findings, now_ms: nowMs }, isWhole) {
  const lines = [];
  if (row.problem) lines.push({ severity: "urgent", what: rowProblem(row, nowMs), advice: problemDetail(row) });
  lines.push(...(findings?.alarms ?? []));
  const doctor = findings?.doctor ?? [];
  const told = [...lines, ...doctor].some((one) => one.what === row.urgent?.what);
  // What is lost is told above, with its offsets.
  if (row.urgent && row.urgent.kind !== "lost" && !told) lines.unshift(row.urgent);
  for (const one of doctor) if (one.severity !== "note" && !lines.some((line) => line.what === one.what)) lines.push(one);
  if (!isWhole) return lines.length > 0 ? h("div", { class: "findings" }, finding(lines[0])) : null;
  const notes = doctor.filter((one) => one.severity === "note");
  if (lines.length === 0 && notes.length === 0) return null;
  return h(
    "div",
    { class: "findings" },
    lines.map((line) => finding(line)),
    notes.length > 0
      ? h("details", { "data-key": "notes" }, h("summary", { "data-key": "notes-summary" }, counted("notes", notes.length)), notes.map((line) => finding(line)))
      : null,
  );
}

function finding({ severity, what, advice, then }) {
  return h(
    "div",
    { class: `notice notice-${severity}` },
    stateIcon(severity),
    h("div", null, h("p", null, h("span", { class: "hidden-text" }, `${t(`state_${severity}`)}: `), h("b", null, withCommands(what, then)), advice ? h("span", { class: "advice-text" }, withCommands(advice, then)) : null)),
  );
}
