// English or Chinese: by Airflow's own choice, else the browser's.

import { stored } from "./storage.js";
import { words as english } from "./words_en.js";
import { words as chinese } from "./words_zh.js";

const KEY = "i18nextLng";
const listeners = new Set();
let code = "en";
let words = english;
let plural = new Intl.PluralRules("en");
let counts = new Intl.NumberFormat("en");

function wanted() {
  const kept = stored(KEY);
  return (kept ? [kept] : navigator.languages ?? [navigator.language]).find((one) => /^(en|zh)/i.test(one)) ?? "en";
}

function apply() {
  code = /^zh/i.test(wanted()) ? "zh-CN" : "en";
  words = code === "en" ? english : chinese;
  plural = new Intl.PluralRules(code);
  counts = new Intl.NumberFormat(code);
  document.documentElement.lang = code;
}

/** Follow Airflow's choice from now on. */
export function followLanguage() {
  apply();
  window.addEventListener("storage", (event) => {
    if (event.key !== KEY && event.key !== null) return;
    apply();
    for (const listener of listeners) listener();
  });
}

/** Call a function after each change of language. */
export function onLanguage(listener) {
  listeners.add(listener);
}

/** Return the language's code, as Intl takes it. */
export function language() {
  return code;
}

/** Return whether there are words under a key, as for what a newer release may name. */
export function hasWords(key) {
  return Object.hasOwn(words, key);
}

/** Return the words of a key, with values in the places of their names. */
export function t(key, values) {
  const text = words[key];
  if (text === undefined) return key;
  return values ? text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole)) : text;
}

/** Return words for a number of things: `KEY_one` or `KEY_other`, with the number at {count}. */
export function counted(key, count, values) {
  const form = plural.select(count) === "one" ? "one" : "other";
  return t(`${key}_${form}`, { count: counts.format(count), ...values });
}

/** Return the words of a name that the server gives, or the name itself where there are none. */
export function named(prefix, name) {
  const key = `${prefix}_${String(name).replaceAll("-", "_")}`;
  return hasWords(key) ? t(key) : String(name);
}
