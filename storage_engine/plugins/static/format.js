// Figures as a person reads them; the same everywhere on the page.

import { hasWords, language, t } from "./language.js";
import { zone } from "./zone.js";

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const UNITS = [
  ["d", 86_400_000],
  ["h", 3_600_000],
  ["min", 60_000],
  ["s", 1_000],
];
const moments = new Map();
const numbers = new Map();

/** Return what stands for a value that nobody knows. */
export function unknown() {
  return t("unknown");
}

/** Return a number with its language's separators. */
export function number(value, digits = 0) {
  const key = `${language()} ${digits}`;
  // Making one takes longer than all that is written with it.
  if (!numbers.has(key)) numbers.set(key, new Intl.NumberFormat(language(), { maximumFractionDigits: digits }));
  return numbers.get(key).format(value);
}

/** Return a size in binary units, as brokers configure theirs. */
export function bytes(value, digits = 1) {
  if (value === null || value === undefined) return unknown();
  let unit = 0;
  let left = value;
  while (Math.abs(left) >= 1024 && unit < BYTES.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${number(left, unit === 0 ? 0 : left >= 100 ? 0 : digits)} ${BYTES[unit]}`;
}

/** Return a duration by its two largest units, or by as many as are asked for. */
export function duration(ms, units = 2) {
  if (ms === null || ms === undefined) return unknown();
  const parts = [];
  let left = Math.max(0, Math.round(ms / 1000) * 1000);
  for (const [name, length] of UNITS) {
    const count = Math.floor(left / length);
    if (count === 0 && (parts.length > 0 || length > 1000)) {
      if (parts.length > 0) break;
      continue;
    }
    parts.push(t(`unit_${name}`, { count: number(count) }));
    left -= count * length;
    if (parts.length === units) break;
  }
  return parts.join(" ");
}

/** Return a duration that is only foreseen: the longer it is, the less exact. */
export function foreseen(ms) {
  if (ms === null || ms === undefined) return unknown();
  return ms > 365 * 86_400_000 ? t("over_a_year") : duration(ms, ms > 7 * 86_400_000 ? 1 : 2);
}

/** Return a level. */
export function percent(value, digits = 0) {
  return value === null || value === undefined ? unknown() : `${number(value, digits)} %`;
}

function parts(ms, wanted) {
  const key = `${wanted} ${zone()}`;
  if (!moments.has(key)) {
    moments.set(
      key,
      new Intl.DateTimeFormat("en-CA", {
        timeZone: wanted,
        hourCycle: "h23",
        year: "numeric",
        month: "2-digit",
        day: "2-digit",
        hour: "2-digit",
        minute: "2-digit",
        second: "2-digit",
      }),
    );
  }
  return Object.fromEntries(moments.get(key).formatToParts(new Date(ms)).map((part) => [part.type, part.value]));
}

/** Return a moment to the minute, in the zone that the page names. */
export function moment(ms, { seconds = false, wanted = zone() } = {}) {
  if (ms === null || ms === undefined) return unknown();
  const at = parts(ms, wanted);
  return `${at.year}-${at.month}-${at.day} ${at.hour}:${at.minute}${seconds ? `:${at.second}` : ""}`;
}

/** Return the day of a moment, in the zone that the page names. */
export function day(ms) {
  return moment(ms).slice(0, 10);
}

/** Return the day that stands so many days behind 1970-01-01. */
export function utcDay(days) {
  return new Date(days * 86_400_000).toISOString().slice(0, 10);
}

/** Return how long ago a moment is, or in how long it comes. */
export function away(ms, nowMs) {
  if (ms === null || ms === undefined) return unknown();
  const ago = nowMs - ms;
  if (Math.abs(ago) < 5_000) return t("just_now");
  return ago >= 0 ? t("ago", { duration: duration(ago, 1) }) : t("in", { duration: duration(-ago, 1) });
}

/** Return a range of offsets. */
export function offsets(start, end) {
  return `${number(start)} – ${number(end)}`;
}

/** Return the time until the first disk of a store is full, or that none fills, or that nobody knows. */
export function timeToFull({ filling, time_to_full_ms: ms, full_at_earliest_ms: earliestMs }) {
  if (filling === "not-filling") return t("not_filling");
  if (ms === null && typeof earliestMs === "number") return t("at_the_earliest", { from: foreseen(earliestMs) });
  return ms === 0 ? t("full_now") : foreseen(ms);
}

/** Say why something isn't known of a store, in the page's language; "": nothing is wrong. */
export function rowProblem(row, nowMs) {
  if (!row.problem) return "";
  const away = row.sampled_at_ms === null ? "" : duration(Math.abs(nowMs - row.sampled_at_ms));
  const key = `row_problem_${(row.problem_kind ?? "").replace("-", "_")}`;
  return hasWords(key) ? t(key, { away }) : row.problem;
}

/** Say why a store shows no run: there was none, or nobody can tell. */
export function noRun(row) {
  return ["journal", "connection", "not-yet"].includes(row.problem_kind) ? t("unknown") : t("no_run");
}

/** Return the server's own sentence of a problem that the page's words don't tell in full; "": they do. */
export function problemDetail(row) {
  return ["journal", "connection"].includes(row.problem_kind) ? row.problem : "";
}

/** Return where a store is; of a machine's id its beginning is enough. */
export function storePlace({ host, path }) {
  const name = host && /^[0-9a-f]{32}$/.test(host) ? host.slice(0, 8) : host;
  return [name, path].filter(Boolean).join(":");
}
