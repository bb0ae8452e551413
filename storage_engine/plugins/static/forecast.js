// What is to be expected at the present rate, with honest bands, or why nothing can be told.

import { ask, ofStore } from "./api.js";
import { h, replace, svg } from "./dom.js";
import { bytes, duration, foreseen, number, percent } from "./format.js";
import { named, t } from "./language.js";
import { block } from "./now.js";
import { poll } from "./poll.js";
import { emptyBox, problemBox, waiting } from "./problem.js";

const ASK_AGAIN_MS = 60_000;
const HOUR = 3_600_000;
const TICKS = [HOUR, 6 * HOUR, 24 * HOUR, 3 * 24 * HOUR, 7 * 24 * HOUR, 30 * 24 * HOUR, 90 * 24 * HOUR, 365 * 24 * HOUR];

/** Show the forecast of a store in `host`; return what ends it. */
export function showForecast(host, { store }) {
  replace(host, waiting());
  let before = null;
  async function load() {
    try {
      const answer = await ask(ofStore(store, "forecast"));
      if (answer === before) return;
      before = answer;
      replace(host, answer.enough ? all(answer) : emptyBox(t("not_enough"), why(answer), h("p", { class: "dim" }, t("not_enough_do"))));
    } catch (error) {
      replace(host, problemBox(error, load));
      before = null;
      throw error;
    }
  }
  return poll(load, ASK_AGAIN_MS);
}

function why({ why: said, samples, span_ms: span }) {
  return `${named("why", said)} ${t("measured_over", { samples: number(samples ?? 0), span: duration(span ?? 0) })}`.trim();
}

function all(answer) {
  return [
    block(
      t("rates_title"),
      h(
        "dl",
        { class: "facts" },
        answer.ingest ? rate(t("ingest"), answer.ingest) : null,
        answer.reclaim ? rate(t("reclaim"), answer.reclaim) : null,
        rate(t("net_rate"), answer.net),
        band(t("retention_expected"), answer.retention, (value) => foreseen(value), ["low_ms", "mid_ms", "high_ms"]),
      ),
      h("p", { class: "dim small" }, t("measured_over", { samples: number(answer.samples), span: duration(answer.span_ms) }), " ", t("bands_mean")),
    ),
    block(t("time_to_title"), timeTo(answer.time_to)),
  ];
}

function rate(name, value) {
  return band(name, value, (size) => t("per_day", { size: bytes(size) }), ["low", "mid", "high"], (size) => bytes(size));
}

function band(name, value, text, [low, mid, high], short = text) {
  const known = value && value[mid] !== null && value[mid] !== undefined;
  return h(
    "div",
    { class: "fact" },
    h("dt", null, name),
    h("dd", null, known ? text(value[mid]) : t("unknown"), known ? h("small", { class: "dim" }, ` ${t("from_to", { from: short(value[low]), to: short(value[high]) })}`) : null),
  );
}

/** Place a span on an axis that shows an hour and a year alike. */
function at(ms) {
  const [first, last] = [Math.log(TICKS[0] / 2), Math.log(TICKS[TICKS.length - 1])];
  return Math.min(100, Math.max(0, ((Math.log(Math.max(1, ms)) - first) / (last - first)) * 100));
}

function timeTo(rows) {
  if (rows.length === 0) return emptyBox(t("time_to_none"), t("time_to_none_do"));
  return h(
    "div",
    { class: "bands" },
    rows.map((row) => bandRow(row)),
    h("div", { class: "band-axis", "aria-hidden": "true" }, h("span"), h("div", null, TICKS.map((tick) => h("i", { vars: { "--at": `${at(tick)}%` } }, duration(tick, 1))))),
  );
}

function bandRow(row) {
  const name = row.name === "full" ? t("full") : t(`level_${row.name}`);
  const label = h("span", { class: "band-name" }, name, " ", h("small", { class: "dim" }, percent(row.level_percent)));
  const values = [row.low_ms, row.mid_ms, row.high_ms];
  if (values.every((value) => value === null)) {
    return h("div", { class: "band-row" }, label, h("span", { class: "dim" }, t("never_at_this_rate")));
  }
  const [from, to] = [row.low_ms ?? row.mid_ms, row.high_ms];
  const end = to === null ? 100 : at(to);
  const text = row.mid_ms === 0 ? t("reached") : row.mid_ms === null ? t("at_the_earliest", { from: foreseen(from) }) : foreseen(row.mid_ms);
  const range = row.mid_ms === 0 || row.mid_ms === null ? "" : to === null ? t("from_or_never", { from: foreseen(from) }) : t("from_to", { from: foreseen(from), to: foreseen(to) });
  return h(
    "div",
    { class: "band-row" },
    label,
    h(
      "div",
      { class: "band-track" },
      svg(
        "svg",
        { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true", class: `band band-${row.name}` },
        svg("rect", { x: at(from), y: 2, width: Math.max(0.6, end - at(from)), height: 6, rx: 0.4 }),
        row.mid_ms === null ? null : svg("rect", { class: "band-mid", x: at(row.mid_ms) - 0.2, y: 0, width: 0.4, height: 10 }),
      ),
    ),
    h("span", { class: "band-text" }, h("b", null, text), " ", h("small", { class: "dim" }, range)),
  );
}
