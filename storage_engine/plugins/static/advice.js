// Advice in words: the server gives a kind and numbers, and each language says it.

import { h } from "./dom.js";
import { bytes, number, percent } from "./format.js";
import { stateIcon } from "./icons.js";
import { hasWords, t } from "./language.js";

const TONES = { fits: "ok", "does-not-fit": "urgent", "force-is-off": "warning", "ratio-too-high": "warning", "window-too-short": "warning" };

function text(name, value) {
  if (typeof value !== "number") return String(value);
  if (name.endsWith("_bytes")) return bytes(value);
  if (name.endsWith("_percent")) return percent(value, 1);
  return number(value, 2);
}

/** Return advice as a list; a kind that this release has no words for is shown as it is. */
export function adviceList(all) {
  if (!all || all.length === 0) return h("p", { class: "dim" }, t("advice_none"));
  return h("ul", { class: "advice" }, all.map((one) => h("li", { class: "with-icon" }, stateIcon(TONES[one.kind] ?? "note"), sentence(one))));
}

function sentence({ kind, numbers, ...rest }) {
  const found = Object.entries({ ...rest, ...numbers });
  const values = Object.fromEntries(found.map(([name, value]) => [name, text(name, value)]));
  const key = `advice_${kind.replaceAll("-", "_")}`;
  if (hasWords(key)) return h("span", null, t(key, values));
  return h("span", null, h("code", null, kind), " ", found.map(([name]) => `${name} ${values[name]}`).join(", "));
}
