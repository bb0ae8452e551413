// Panes that both charts have: retention time, water level and archive lag, with their scales.

import { bytes, duration, number, percent } from "./format.js";
import { t } from "./language.js";

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const SPANS = [MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 5 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 90 * DAY];
const SIZES = Array.from({ length: 50 }, (_, power) => 2 ** power);

function upTo(high, least) {
  return [0, Math.max(least, (high ?? 0) * 1.08)];
}

/** Return the pane of retention times. */
export function retentionPane(series, height) {
  return {
    key: "retention",
    title: t("pane_retention"),
    height,
    text: (value) => duration(value),
    axisText: (value) => (value === 0 ? "0" : duration(value, 1)),
    increments: SPANS,
    limits: (_low, high) => upTo(high, HOUR),
    lines: [],
    series,
  };
}

/** Return the pane of water levels, from empty to full. */
export function levelPane(series, lines, height) {
  return {
    key: "level",
    title: t("pane_level"),
    height,
    text: (value) => percent(value, 1),
    axisText: (value) => `${number(value)} %`,
    increments: [10, 20, 25, 50],
    limits: () => [0, 100],
    lines,
    series,
  };
}

/** Return the pane of what is sealed and in no lake. */
export function lagPane(values, height) {
  return {
    key: "lag",
    title: t("pane_lag"),
    height,
    text: (value) => bytes(value),
    axisText: (value) => (value === 0 ? "0" : bytes(value, 0)),
    increments: SIZES,
    limits: (_low, high) => upTo(high, 1024 * 1024),
    lines: [],
    series: [{ label: t("pane_lag"), values, colour: "--lag", fill: "--lag-fill" }],
  };
}

const LEVELS = ["notice", "cleans", "forces", "refuses"];
const DASHES = { notice: [2, 4], cleans: [6, 4], forces: [10, 3], refuses: [] };

/** Return the lines at the levels that the broker acts at, through each change of its rules. */
export function levelLines(rules) {
  return LEVELS.map((name) => ({
    label: t(`level_${name}`),
    colour: `--level-${name}`,
    dash: DASHES[name],
    at: (rules ?? [])
      .filter((one) => Number.isFinite(one[`${name}_percent`]))
      .map((one) => ({ at_ms: one.at_ms, value: one[`${name}_percent`] })),
  }));
}
