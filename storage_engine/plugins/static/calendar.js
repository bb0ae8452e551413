// Each day's validations: passed, failed, not run, with gaps and losses that can't be overlooked.

import { ask, ofStore } from "./api.js";
import { h, replace } from "./dom.js";
import { moment, number } from "./format.js";
import { counted, language, named, t } from "./language.js";
import { notice } from "./notice.js";
import { emptyBox, problemBox, waiting } from "./problem.js";
import { note } from "./router.js";
import { links, outcome } from "./runs.js";
import { scrolling, table } from "./table.js";

const FIRST_YEAR = 2000;
const SIGNS = { lost: "!", failed: "✕", passed: "✓", idle: "–" };

/** Show the calendar of a store in `host`; return what ends it. */
export function showCalendar(host, { store, query }) {
  const thisYear = new Date().getUTCFullYear();
  const asked = Number(query.get("year"));
  // Another year is that of a mistyped address; buttons lead no farther.
  let year = asked >= FIRST_YEAR && asked <= thisYear && Number.isInteger(asked) ? asked : thisYear;
  let chosen = query.get("day");
  const ending = new AbortController();
  replace(host, waiting());

  async function load() {
    try {
      const { days } = await ask(ofStore(store, "calendar"), { query: { year }, signal: ending.signal });
      paint(new Map(days.map((one) => [one.day, one])));
    } catch (error) {
      if (error.name !== "AbortError") replace(host, problemBox(error, load));
    }
  }

  function turn(by) {
    year += by;
    chosen = null;
    note(["store", store, "quality"], year === thisYear ? {} : { year });
    load();
  }

  function paint(days) {
    const panel = h("div", { class: "day-panel", "aria-live": "polite" });
    const choose = (day, cell) => {
      chosen = day;
      note(["store", store, "quality"], { year: year === thisYear ? undefined : year, day });
      for (const one of host.querySelectorAll(".day[aria-pressed=true]")) one.setAttribute("aria-pressed", "false");
      cell?.setAttribute("aria-pressed", "true");
      replace(panel, dayRuns(store, days.get(day)));
    };
    // Before the first validation there is nothing to tell.
    const first = Math.min(12, ...[...days.keys()].map((day) => Number(day.slice(5, 7)) - 1));
    const months = Array.from({ length: 12 - first }, (_, n) => monthBlock(year, first + n, days, choose, chosen)).filter(Boolean);
    const bar = h(
      "div",
      { class: "calendar-bar" },
      h("button", { type: "button", class: "button", "data-key": "year-before", "aria-label": t("year_before"), disabled: year <= FIRST_YEAR, on: { click: () => turn(-1) } }, "‹"),
      h("h2", null, String(year)),
      h("button", { type: "button", class: "button", "data-key": "year-after", "aria-label": t("year_after"), disabled: year >= thisYear, on: { click: () => turn(1) } }, "›"),
      h("ul", { class: "legend" }, Object.entries(SIGNS).map(([state, sign]) => h("li", null, h("i", { class: `day-sign day-${state}` }, sign), t(`day_${state}`)))),
    );
    const bad = [...days.values()].filter((one) => one.gaps > 0 || one.losses > 0);
    replace(
      host,
      bad.length > 0 ? lossNotice(bad) : null,
      bar,
      h("p", { class: "dim small" }, t("days_are_utc")),
      days.size === 0 ? emptyBox(t("calendar_empty"), t("calendar_empty_do")) : null,
      h("div", { class: "months", on: { keydown: (event) => moveByDay(event, host) } }, months),
      panel,
    );
    if (chosen && days.has(chosen)) replace(panel, dayRuns(store, days.get(chosen)));
    else if (days.size > 0) replace(panel, h("p", { class: "dim" }, t("choose_day")));
  }

  load();
  return () => ending.abort();
}

function lossNotice(bad) {
  return notice(
    "urgent",
    counted("days_with_loss", bad.length),
    h("p", null, bad.slice(-8).map((one) => one.day).join(" · ")),
    h("p", { class: "dim" }, t("lost_do")),
  );
}

function stateOf(day) {
  if (!day) return null;
  if (day.gaps > 0 || day.losses > 0) return "lost";
  if (day.failed > 0) return "failed";
  return day.passed > 0 ? "passed" : "idle";
}

function monthBlock(year, month, days, choose, chosen) {
  const first = new Date(Date.UTC(year, month, 1));
  if (first.getTime() > Date.now()) return null;
  const name = first.toLocaleDateString(language(), { month: "long", timeZone: "UTC" });
  const count = new Date(Date.UTC(year, month + 1, 0)).getUTCDate();
  const shift = (first.getUTCDay() + 6) % 7;
  const cells = Array.from({ length: count }, (_, n) => {
    const date = new Date(Date.UTC(year, month, n + 1)).toISOString().slice(0, 10);
    return dayCell(date, n + 1, days.get(date), choose, chosen, n === 0 ? shift : null);
  });
  return h("section", { class: "month", "aria-label": `${name} ${year}` }, h("h3", null, name), h("div", { class: "days" }, cells));
}

function dayCell(date, n, day, choose, chosen, shift) {
  const state = stateOf(day);
  const vars = shift === null ? {} : { "--column": String(shift + 1) };
  const kind = shift === null ? "" : " day-first";
  if (state === null) return h("span", { class: `day${kind}`, vars }, h("small", null, String(n)));
  const button = h(
    "button",
    {
      type: "button",
      class: `day day-${state}${kind}`,
      vars,
      "aria-pressed": String(date === chosen),
      "aria-label": `${date}: ${t(`day_${state}`)}, ${dayWords(day)}`,
      title: dayWords(day),
      "data-key": `day-${date}`,
    },
    h("small", null, String(n)),
    h("b", null, SIGNS[state]),
  );
  button.addEventListener("click", () => choose(date, button));
  return button;
}

function dayWords(day) {
  const runs = [["passed", day.passed], ["failed", day.failed], ["not_run", day.not_run], ["unknown", day.unknown]];
  const parts = runs.filter(([, count]) => count > 0).map(([name, count]) => `${number(count)} ${t(`checks_${name}`)}`);
  if (day.gaps > 0) parts.push(counted("checks_gaps", day.gaps));
  if (day.losses > 0) parts.push(counted("checks_losses", day.losses));
  return parts.join(", ") || t("checks_none");
}

function dayRuns(store, day) {
  const columns = [
    { title: t("time"), isHead: true, class: "nowrap", cell: (run) => moment(run.at_ms) },
    { title: t("outcome"), cell: (run) => outcome(run) },
    { title: t("validation"), cell: (run) => named("checks", run.validation) },
    { title: t("report"), cell: (run) => links(store, run) },
  ];
  return [h("h2", null, day.day), h("p", null, dayWords(day)), scrolling(day.day, table({ columns, rows: day.runs, caption: day.day }))];
}

function moveByDay(event, host) {
  const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -7, ArrowDown: 7 }[event.key];
  const here = event.target.closest?.("button.day");
  if (!by || !here) return;
  const wanted = new Date(`${here.dataset.key.slice(4)}T00:00:00Z`);
  // Days without a run can't be chosen: the next one that can is taken.
  for (let tries = 0; tries < 60; tries += 1) {
    wanted.setUTCDate(wanted.getUTCDate() + by);
    const there = host.querySelector(`[data-key="day-${wanted.toISOString().slice(0, 10)}"]`);
    if (there) {
      event.preventDefault();
      there.focus();
      return;
    }
  }
}
