// All stores: one row each, the worst first.

import { ask } from "./api.js";
import { breakable, h, replace } from "./dom.js";
import { away, bytes, duration, moment, noRun, number, problemDetail, rowProblem, storePlace, timeToFull } from "./format.js";
import { stateIcon } from "./icons.js";
import { counted, named, t } from "./language.js";
import { levels } from "./meter.js";
import { poll } from "./poll.js";
import { emptyBox, problemBox, waiting } from "./problem.js";
import { link, note } from "./router.js";
import { scrolling, table } from "./table.js";

const ASK_AGAIN_MS = 30_000;

/** Show every store in `host`; return what ends it. */
export function showAllStores(host, query) {
  const state = { answer: null, search: query.get("search") ?? "", sort: null };
  const problem = h("div");
  const summary = h("div", { class: "summary", role: "status" });
  const rows = h("div", null, waiting());
  const search = h("input", {
    type: "search",
    class: "search",
    value: state.search,
    placeholder: t("search_stores"),
    "aria-label": t("search_stores"),
    "aria-keyshortcuts": "/",
    on: { input: () => find(search.value) },
  });
  replace(
    host,
    h("header", { class: "view-head" }, h("h1", { tabindex: "-1" }, t("all_stores")), summary, h("div", { class: "tools" }, search)),
    problem,
    rows,
  );

  function find(text) {
    state.search = text;
    note([], text ? { search: text } : {});
    paint();
  }

  function shownRows() {
    const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
    return state.answer.stores.filter((row) => {
      const text = [row.store, row.host, row.path, row.broker, t(`state_${row.state}`)].join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    });
  }

  function paint() {
    const { answer } = state;
    if (answer === null) return;
    replace(summary, counts(answer.stores));
    replace(problem, answer.problem ? problemBox({ status: 503, detail: answer.problem }, load) : null);
    const found = shownRows();
    if (answer.stores.length === 0) {
      replace(rows, answer.problem ? null : emptyBox(t("no_stores"), t("no_stores_do")));
    } else if (found.length === 0) {
      const clear = h("button", { type: "button", class: "button", on: { click: () => clearSearch() } }, t("search_clear"));
      replace(rows, emptyBox(t("search_none", { search: state.search }), t("search_none_do"), clear));
    } else {
      const sort = state.sort;
      const onSort = (next) => {
        state.sort = next;
        paint();
      };
      const columns = columnsOf(answer.now_ms);
      const made = table({ columns, rows: found, caption: t("all_stores"), sort, onSort, rowProps, className: "stores" });
      replace(rows, scrolling(t("all_stores"), made));
    }
  }

  function clearSearch() {
    search.value = "";
    find("");
    search.focus();
  }

  async function load() {
    try {
      const answer = await ask("stores");
      if (answer !== state.answer) {
        state.answer = answer;
        paint();
      }
    } catch (error) {
      replace(problem, problemBox(error, load, { quiet: state.answer !== null }));
      if (state.answer === null) replace(rows);
      throw error;
    }
  }

  function onKey(event) {
    const isTyping = event.target.closest?.("input, textarea, select");
    if (event.key === "/" && !isTyping) {
      event.preventDefault();
      search.focus();
      search.select();
    }
    const links = [...rows.querySelectorAll("a.store-link")];
    const here = links.indexOf(document.activeElement);
    const to = { ArrowDown: here + 1, ArrowUp: here - 1 }[event.key];
    if (to === undefined || (isTyping && event.key !== "ArrowDown") || !links[to]) return;
    event.preventDefault();
    links[to].focus();
  }

  document.addEventListener("keydown", onKey);
  const endPoll = poll(load, ASK_AGAIN_MS);
  return () => {
    endPoll();
    document.removeEventListener("keydown", onKey);
  };
}

function rowProps(row) {
  return { class: `row-${row.state}` };
}

function counts(stores) {
  return ["urgent", "warning", "ok", "unknown"].map((state) => {
    const count = stores.filter((row) => row.state === state).length;
    return count === 0 ? null : h("span", { class: "count" }, stateIcon(state), `${number(count)} ${t(`state_${state}`)}`);
  });
}

const ORDER = { urgent: 0, warning: 1, unknown: 2, ok: 3 };

function highest(row) {
  const known = row.levels.map((level) => level.used_percent).filter((value) => value !== null);
  return known.length > 0 ? Math.max(...known) : null;
}

/** Return what the time to full sorts by: what never fills comes behind all that does, and unknown last. */
function untilFull(row) {
  return row.filling === "not-filling" ? Number.MAX_SAFE_INTEGER : row.time_to_full_ms;
}

function columnsOf(nowMs) {
  return [
    { title: t("store"), isHead: true, class: "col-store", key: (row) => ORDER[row.state] ?? 2, cell: (row) => storeCell(row) },
    { title: t("level"), class: "col-level", key: highest, descends: true, cell: (row) => levels(row.levels, row.path) },
    { title: t("retention"), class: "num", key: (row) => row.retention_ms, cell: (row) => duration(row.retention_ms) },
    { title: t("time_to_full"), class: "num", key: untilFull, cell: (row) => timeToFull(row) },
    { title: t("archive_lag"), class: "num", key: (row) => row.archive_lag_bytes, descends: true, cell: (row) => bytes(row.archive_lag_bytes) },
    { title: t("lagging_groups"), class: "num", key: (row) => row.lagging_groups, descends: true, cell: (row) => lagging(row) },
    { title: t("last_run"), class: "col-run", key: (row) => row.last_run?.created_at_ms ?? null, descends: true, cell: (row) => runCell(row, nowMs) },
    { title: t("most_urgent"), class: "col-urgent", cell: (row) => urgentCell(row, nowMs) },
  ];
}

function storeCell(row) {
  return h(
    "div",
    { class: "store-cell" },
    stateIcon(row.state),
    h(
      "div",
      null,
      h("a", { class: "store-link", href: link(["store", row.store]), "data-key": `store-${row.store}` }, row.store),
      h("span", { class: "hidden-text" }, ` ${t(`state_${row.state}`)} `),
      h("div", { class: "dim small" }, breakable(storePlace(row))),
    ),
  );
}

function lagging(row) {
  if (row.lagging_groups === null || row.lagging_groups === undefined) return t("unknown");
  return row.lagging_groups > 0 ? h("b", null, number(row.lagging_groups)) : number(0);
}

function runCell(row, nowMs) {
  const run = row.last_run;
  if (!run) return h("span", { class: "dim" }, noRun(row));
  return h(
    "div",
    null,
    h("div", null, named("outcome", run.outcome ?? run.state)),
    h("div", { class: "dim small", title: moment(run.created_at_ms) }, away(run.created_at_ms, nowMs)),
    run.deleted_segments ? h("div", { class: "dim small parts" }, h("span", null, `${counted("segments", run.deleted_segments)},`), " ", h("span", null, bytes(run.freed_bytes))) : null,
  );
}

function urgentCell(row, nowMs) {
  // What the last look found stands beside that nobody looks any more.
  const found = (row.problem_kind ?? "").startsWith("monitor") && !row.urgent?.kind.startsWith("dag-") ? row.urgent?.what : "";
  if (row.problem) return h("span", { class: "urgent-line", title: row.problem }, [rowProblem(row, nowMs), problemDetail(row), found].filter(Boolean).join(" "));
  if (!row.urgent) return h("span", { class: "dim" }, row.state === "ok" ? t("nothing_urgent") : "");
  return h("span", { class: "urgent-line", title: row.urgent.advice || null }, row.urgent.what);
}
