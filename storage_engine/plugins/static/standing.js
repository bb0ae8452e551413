// What stands for a store: its hold, who works on it, its shield, waivers, accepted losses, and checks.

import { h } from "./dom.js";
import { away, bytes, moment, number, offsets } from "./format.js";
import { stateIcon } from "./icons.js";
import { counted, t } from "./language.js";

/** Return what stands for a store, each with what it means where there is none. */
export function standingBlock({ standing, now_ms: nowMs }) {
  if (!standing) return h("p", { class: "dim" }, t("unknown"));
  return h(
    "dl",
    { class: "standing" },
    entry(t("hold"), hold(standing.hold, nowMs)),
    entry(t("worker"), standing.worker ? t("worker_until", { worker: standing.worker, when: moment(standing.worker_until_ms) }) : t("worker_none")),
    standing.has_shield ? entry(t("shield"), shield(standing.shield)) : null,
    entry(t("verified"), verified(standing.verified, nowMs)),
    entry(t("waivers"), list(standing.waivers, t("waivers_none"), (one) => t("waiver_line", { person: one.person, reason: one.reason, when: moment(one.at_ms), plan: one.plan_digest.slice(0, 12) }))),
    entry(
      t("losses"),
      list(standing.losses, t("losses_none"), (one) =>
        t("loss_line", { log: one.log || t("the_log"), offsets: offsets(one.start_offset, one.end_offset), person: one.person, reason: one.reason, when: moment(one.at_ms) }),
      ),
    ),
  );
}

function entry(name, ...value) {
  return h("div", null, h("dt", null, name), h("dd", null, value));
}

function list(all, none, line) {
  if (!all || all.length === 0) return h("span", { class: "dim" }, none);
  return h("ul", { class: "plain" }, all.map((one) => h("li", null, line(one))));
}

function hold(row, nowMs) {
  if (!row) return h("span", { class: "dim" }, t("hold_none"));
  const seen = t("sampled", { when: away(row.at_ms, nowMs) });
  if (row.described) return h("span", null, `${row.described} · ${seen}`);
  if (!row.held) return h("span", { class: "with-icon" }, stateIcon("warning"), `${t("hold_ended")} · ${seen}`);
  const until = row.ends_at_ms === null ? t("hold_on") : t("hold_until", { when: moment(row.ends_at_ms) });
  return h("span", { class: "with-icon" }, stateIcon("ok"), `${until} · ${seen}`);
}

function shield(row) {
  if (!row || row.segments === 0) return h("span", { class: "dim" }, t("shield_none"));
  const kept = t("shield_line", { segments: counted("segments", row.segments), size: bytes(row.size_bytes) });
  if (row.gone_segments === 0) return kept;
  return h("span", { class: "with-icon" }, stateIcon("warning"), `${kept}. ${t("shield_gone", { segments: counted("segments", row.gone_segments) })}`);
}

function verified(row, nowMs) {
  if (!row) return h("span", { class: "dim" }, t("verified_none"));
  const text = t("verified_line", { receipts: number(row.receipts), oldest: away(row.oldest_ms, nowMs), newest: away(row.newest_ms, nowMs) });
  if (row.faulty === 0) return h("span", { class: "with-icon" }, stateIcon("ok"), text);
  return h("span", { class: "with-icon" }, stateIcon("urgent"), `${counted("faulty", row.faulty)} ${text}`);
}
