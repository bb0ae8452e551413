// Who reads the store and when they lose messages, and what its topics take.

import { h } from "./dom.js";
import { away, bytes, duration, number, utcDay } from "./format.js";
import { stateIcon } from "./icons.js";
import { counted, t } from "./language.js";
import { emptyBox } from "./problem.js";
import { scrolling, table } from "./table.js";

const HOUR = 3_600_000;
const MOST_TOPICS = 12;

function urgency(ms) {
  if (ms === null || ms === undefined) return null;
  return ms < 6 * HOUR ? "urgent" : ms < 48 * HOUR ? "warning" : "ok";
}

/** Return consumer groups, those that lose messages first at the head. */
export function groupsBlock({ groups, logs, now_ms: nowMs }) {
  if (!groups || groups.length === 0) return emptyBox(t("groups_empty"), t("groups_empty_do"));
  const columns = [
    { title: t("group"), isHead: true, class: "break", cell: (group) => group.consumer_group },
    { title: t("time_to_loss"), class: "num", cell: (group) => timeToLoss(group) },
    { title: t("lag_messages"), class: "num", cell: (group) => lag(group) },
  ];
  // Each log counts its own offsets: of several the lowest one says nothing.
  if (logs <= 1) columns.push({ title: t("first_unread"), class: "num", cell: (group) => (group.first_unread_offset === null ? "" : number(group.first_unread_offset)) });
  const newest = Math.max(...groups.map((group) => group.at_ms));
  return [
    scrolling(t("groups_title"), table({ columns, rows: groups, caption: t("groups_title") })),
    h("p", { class: "dim small" }, t("measured", { when: away(newest, nowMs) })),
  ];
}

function timeToLoss(group) {
  if (group.time_to_loss_ms === null) return group.lag_messages === 0 && group.unknown_queues === 0 ? t("all_read") : t("unknown");
  return h("span", { class: "with-icon" }, stateIcon(urgency(group.time_to_loss_ms)), group.time_to_loss_ms <= 0 ? t("losing_now") : duration(group.time_to_loss_ms));
}

function lag(group) {
  const unknown = group.unknown_queues > 0 ? h("small", { class: "dim" }, ` ${counted("unknown_queues", group.unknown_queues)}`) : null;
  return h("span", null, number(group.lag_messages), unknown);
}

/** Return topics by their bytes, with a bar for each. */
export function topicsBlock({ topics }) {
  if (!topics || topics.length === 0) return emptyBox(t("topics_empty"), t("topics_empty_do"));
  const sums = new Map();
  for (const { topic, size_bytes: size, messages } of topics) {
    const sum = sums.get(topic) ?? { topic, size: 0, messages: 0 };
    sums.set(topic, { topic, size: sum.size + size, messages: sum.messages + messages });
  }
  const all = [...sums.values()].sort((one, other) => other.size - one.size);
  const total = all.reduce((sum, one) => sum + one.size, 0);
  const shown = all.slice(0, MOST_TOPICS);
  const days = topics.map((one) => one.day);
  const columns = [
    { title: t("topic"), isHead: true, class: "break", cell: (one) => one.topic || t("other_topics") },
    { title: t("size"), class: "num", cell: (one) => bytes(one.size) },
    { title: t("share"), class: "share-cell", cell: (one) => share(one.size / Math.max(1, total)) },
    { title: t("messages"), class: "num", cell: (one) => number(one.messages) },
  ];
  return [
    scrolling(t("topics_title"), table({ columns, rows: shown, caption: t("topics_title") })),
    h(
      "p",
      { class: "dim small" },
      t("topic_days", { from: utcDay(Math.min(...days)), to: utcDay(Math.max(...days)) }),
      all.length > shown.length ? ` ${t("topics_more", { count: number(all.length - shown.length) })}` : "",
    ),
  ];
}

function share(part) {
  return h("span", { class: "share" }, h("i", { vars: { "--used": `${(part * 100).toFixed(1)}%` } }), h("span", null, `${number(part * 100, 1)} %`));
}
