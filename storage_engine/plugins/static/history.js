// The chart of a store with its buttons: it asks for what is in sight, and goes on while the page is open.

import { ask, ofStore } from "./api.js";
import { Chart } from "./chart.js";
import { h, replace } from "./dom.js";
import { historyModel } from "./history_chart.js";
import { t } from "./language.js";
import { chartLegend } from "./legend.js";
import { poll } from "./poll.js";
import { problemBox } from "./problem.js";
import { note } from "./router.js";

const HOUR = 3_600_000;
const DAY = 24 * HOUR;
const RANGES = [
  ["1h", HOUR],
  ["6h", 6 * HOUR],
  ["24h", DAY],
  ["7d", 7 * DAY],
  ["30d", 30 * DAY],
  ["90d", 90 * DAY],
];
const LONGEST = 90 * DAY;
const ASK_AGAIN_MS = 30_000;
const SETTLE_MS = 180;
const MARGIN = 0.3;

/** Show the chart of a store in `host`; return what ends it. */
export function showHistory(host, row, query) {
  const { store } = row;
  const state = read(query);
  const buttons = h("div", { class: "segmented", role: "group", "aria-label": t("range") });
  const liveNote = h("span", { class: "live-note" });
  const problem = h("div");
  const place = h("div", { class: "chart-place" });
  const legend = h("div");
  replace(
    host,
    h(
      "div",
      { class: "chart-bar" },
      buttons,
      h("div", { class: "segmented" }, step("earlier", "‹", -0.5), step("zoom_out", "−", 0, 2), step("zoom_in", "+", 0, 0.5), step("later", "›", 0.5)),
      liveNote,
    ),
    problem,
    place,
    legend,
  );

  const chart = new Chart(place, {
    label: t("chart_label", { store }),
    lastWords: t("chart_last"),
    resetHelp: t("chart_reset"),
    shortestMs: HOUR / 6,
    limits: within,
    onRange: (start, end) => {
      state.range = "";
      [state.start, state.end] = [start, end];
      state.follows = end >= Date.now() - 1_000;
      write();
      settle();
    },
    onReset: () => choose("7d"),
  });
  let settling = null;
  let asking = null;
  let shown = null;

  function step(name, sign, share, factor) {
    const act = () => (factor ? chart.zoomBy(factor, state.follows && factor > 1 ? chart.end : undefined) : chart.pan(share));
    return h("button", { type: "button", "aria-label": t(name), title: t(name), "data-key": name, on: { click: act } }, sign);
  }

  function bounds() {
    if (!state.range) return [state.start, state.end];
    const end = Date.now();
    return [end - length(state.range), end];
  }

  function choose(range) {
    state.range = range;
    state.follows = true;
    write();
    paintButtons();
    chart.setRange(...bounds());
    load();
  }

  function write() {
    const asked = state.range ? { range: state.range } : { from: state.start, to: state.end };
    note(["store", store], asked);
    paintButtons();
  }

  function paintButtons() {
    const names = RANGES.map(([name]) =>
      h(
        "button",
        { type: "button", "aria-pressed": String(state.range === name), "data-key": name, on: { click: () => choose(name) } },
        t(`range_${name}`),
      ),
    );
    replace(buttons, names);
    replace(liveNote, h("i", { class: state.follows ? "live-dot" : "live-dot paused" }), state.follows ? t("live") : t("live_off"));
  }

  function settle() {
    clearTimeout(settling);
    settling = setTimeout(load, SETTLE_MS);
  }

  async function load() {
    asking?.abort();
    asking = new AbortController();
    const [start, end] = bounds();
    const margin = Math.round((end - start) * MARGIN);
    const rounded = (ms) => Math.round(ms / 1000) * 1000;
    try {
      const query = { start_ms: rounded(start - margin), end_ms: rounded(end + margin) };
      const answer = await ask(ofStore(store, "chart"), { query, signal: asking.signal });
      replace(problem);
      shown = answer;
      chart.show(historyModel(answer, row, ...bounds()));
      replace(legend, chartLegend(answer));
    } catch (error) {
      if (error.name === "AbortError") return;
      replace(problem, problemBox(error, load, { quiet: shown !== null }));
      throw error;
    }
  }

  paintButtons();
  // Only what goes on up to now changes; another span is asked for once.
  const endPoll = poll(() => (state.follows || shown === null ? load() : undefined), ASK_AGAIN_MS);
  return () => {
    endPoll();
    clearTimeout(settling);
    asking?.abort();
    chart.destroy();
  };
}

function length(range) {
  return (RANGES.find(([name]) => name === range) ?? RANGES[3])[1];
}

function read(query) {
  const [start, end] = [Number(query.get("from")), Number(query.get("to"))];
  if (start > 0 && end > start) {
    const [first, last] = within(start, end);
    return { range: "", start: first, end: last, follows: last >= Date.now() - 60_000 };
  }
  const range = RANGES.some(([name]) => name === query.get("range")) ? query.get("range") : "7d";
  return { range, start: 0, end: 0, follows: true };
}

/** Keep a span within the 90 days that the journal can have, and what comes within reach. */
function within(start, end) {
  const now = Date.now();
  const span = Math.min(end - start, LONGEST);
  const last = Math.min(Math.max(end, now - LONGEST + span), now + span * 0.1);
  return [last - span, last];
}
