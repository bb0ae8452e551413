// The form of what-if: each setting with its value today, the disk, and the ingest.

import { h, newId, replace } from "./dom.js";
import { bytes, number } from "./format.js";
import { named, t } from "./language.js";

const GIB = 1024 ** 3;
const HOURS = 24;
const BASIC = new Set(["fileReservedTime", "deleteWhen", "diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio", "cleanFileForciblyEnable"]);

/** The form; `query()` and `body()` have only what differs from today. */
export class WhatIfForm {
  constructor(settings, query, onChange) {
    this.settings = settings;
    this.onChange = onChange;
    this.values = Object.fromEntries(settings.settings.map((one) => [one.name, query.get(`s.${one.name}`) ?? String(one.value)]));
    this.disk = positive(query.get("disk")) ?? settings.disk_bytes;
    this.factor = positive(query.get("factor")) ?? 1;
    this.today = settings.ingest.profile ?? new Array(HOURS).fill(1);
    const asked = (query.get("profile") ?? "").split(",").map(Number);
    this.profile = asked.length === HOURS && asked.every((weight) => weight >= 0) ? asked : [...this.today];
    this.element = h("form", { class: "what-if-form", "aria-label": t("what_if_form"), on: { submit: (event) => event.preventDefault() } });
    this.paint();
  }

  paint() {
    const basic = this.settings.settings.filter((one) => BASIC.has(one.name));
    const more = this.settings.settings.filter((one) => !BASIC.has(one.name));
    const isOpen = this.element.querySelector(".more-settings")?.open || more.some((one) => this.differs(one));
    replace(
      this.element,
      h("h2", null, t("what_if_change")),
      basic.map((one) => this.field(one)),
      more.length > 0 ? h("details", { class: "more-settings", open: isOpen }, h("summary", null, t("more_settings")), more.map((one) => this.field(one))) : null,
      this.diskField(),
      this.ingestFields(),
      h("button", { type: "button", class: "button", "data-key": "as-today", on: { click: () => this.reset() } }, t("as_today")),
    );
  }

  differs(setting) {
    return this.values[setting.name] !== String(setting.value);
  }

  change(act) {
    act();
    for (const one of this.settings.settings) {
      this.element.querySelector(`[data-setting="${CSS.escape(one.name)}"]`)?.classList.toggle("is-changed", this.differs(one));
    }
    this.onChange();
  }

  field(setting) {
    const [id, help] = [newId("setting"), newId("help")];
    const set = (value) => this.change(() => (this.values[setting.name] = value));
    const common = { id, "aria-describedby": help, "data-key": id };
    const value = this.values[setting.name];
    let input;
    if (setting.type === "bool") {
      input = h("input", { ...common, type: "checkbox", checked: value === "true", on: { change: (event) => set(String(event.target.checked)) } });
    } else if (setting.type === "int" || setting.type === "percent") {
      input = h("input", { ...common, type: "number", step: 1, min: setting.minimum, max: setting.maximum, value, on: { input: (event) => set(event.target.value) } });
    } else {
      input = h("input", { ...common, type: "text", inputmode: "numeric", pattern: "[0-9; ]+", value, on: { input: (event) => set(event.target.value.trim()) } });
    }
    const unit = setting.type === "percent" ? "%" : setting.unit;
    return h(
      "div",
      { class: `field field-${setting.type}${this.differs(setting) ? " is-changed" : ""}`, "data-setting": setting.name },
      h("label", { for: id }, h("code", null, setting.name)),
      h("span", { class: "field-input" }, input, unit ? h("span", { class: "dim" }, unit) : null),
      h("small", { class: "dim field-help", id: help }, named("setting", setting.name) === setting.name ? setting.help : named("setting", setting.name), " ", t("today_is", { value: `${setting.value}${unit ? ` ${unit}` : ""}` })),
    );
  }

  diskField() {
    const [id, help] = [newId("disk"), newId("help")];
    const input = h("input", {
      id,
      "aria-describedby": help,
      type: "number",
      min: 0.001,
      step: "any",
      value: Number((this.disk / GIB).toPrecision(this.disk < 10 * GIB ? 3 : 6)),
      on: { input: (event) => this.change(() => (this.disk = Math.round(Number(event.target.value) * GIB))) },
    });
    return h("div", { class: "field" }, h("label", { for: id }, t("disk_size")), h("span", { class: "field-input" }, input, h("span", { class: "dim" }, "GiB")), h("small", { class: "dim field-help", id: help }, t("today_is", { value: bytes(this.settings.disk_bytes) })));
  }

  ingestFields() {
    const [id, help] = [newId("factor"), newId("help")];
    const told = h("output", { for: id });
    const tell = () => {
      told.textContent = t("times", { factor: number(this.factor, 2), size: bytes(this.settings.ingest.bytes_per_day * this.factor) });
    };
    tell();
    // From a quarter to four times, each step as large as the other.
    const slider = h("input", {
      id,
      type: "range",
      min: -2,
      max: 2,
      step: 0.05,
      value: Math.log2(Math.max(0.25, Math.min(4, this.factor))),
      "aria-describedby": help,
      on: {
        input: (event) =>
          this.change(() => {
            this.factor = Number((2 ** Number(event.target.value)).toFixed(2));
            tell();
          }),
      },
    });
    const hours = this.profile.map((weight, hour) => this.hourField(weight, hour));
    const isOpen = this.profile.some((weight, hour) => weight !== this.today[hour]);
    return [
      h("div", { class: "field field-range" }, h("label", { for: id }, t("ingest")), slider, h("small", { class: "dim field-help", id: help }, told)),
      h(
        "details",
        { class: "profile", open: isOpen },
        h("summary", null, t("profile")),
        h("p", { class: "dim small" }, t("profile_help")),
        h("div", { class: "hours" }, hours),
      ),
    ];
  }

  hourField(weight, hour) {
    const most = Math.max(...this.profile, 1e-9);
    const bar = h("i", { "aria-hidden": "true", vars: { "--part": String(weight / most) } });
    const label = t("hour_of_day", { hour: String(hour).padStart(2, "0") });
    const input = h("input", {
      type: "number",
      min: 0,
      step: "any",
      value: Number(weight.toFixed(2)),
      "aria-label": label,
      on: {
        input: (event) =>
          this.change(() => {
            this.profile[hour] = Math.max(0, Number(event.target.value) || 0);
            const highest = Math.max(...this.profile, 1e-9);
            this.element.querySelectorAll(".hours i").forEach((one, n) => one.style.setProperty("--part", String(this.profile[n] / highest)));
          }),
      },
    });
    return h("div", { class: "hour" }, bar, h("span", { class: "dim", "aria-hidden": "true" }, String(hour).padStart(2, "0")), input);
  }

  reset() {
    this.values = Object.fromEntries(this.settings.settings.map((one) => [one.name, String(one.value)]));
    this.disk = this.settings.disk_bytes;
    this.factor = 1;
    this.profile = [...this.today];
    this.paint();
    this.onChange();
  }

  /** Return what is wrong with what was typed; "": nothing. */
  check() {
    const bad = [...this.element.elements].find((input) => input.willValidate && !input.checkValidity());
    const label = bad?.labels?.[0]?.textContent ?? bad?.getAttribute("aria-label");
    if (bad) return t("field_bad", { name: label, why: whyBad(bad) });
    const empty = this.settings.settings.find((one) => this.values[one.name] === "");
    if (empty) return t("field_empty", { name: empty.name });
    return this.disk > 0 ? "" : t("field_empty", { name: t("disk_size") });
  }

  isProfileChanged() {
    return this.profile.some((weight, hour) => weight !== this.today[hour]);
  }

  /** Return what the address says of the form. */
  query() {
    const changed = this.settings.settings.filter((one) => this.differs(one)).map((one) => [`s.${one.name}`, this.values[one.name]]);
    return {
      ...Object.fromEntries(changed),
      disk: this.disk === this.settings.disk_bytes ? undefined : this.disk,
      factor: this.factor === 1 ? undefined : this.factor,
      profile: this.isProfileChanged() ? this.profile.join(",") : undefined,
    };
  }

  /** Return what is sent. */
  body() {
    const changed = this.settings.settings.filter((one) => this.differs(one)).map((one) => [one.name, this.values[one.name]]);
    const ingest = { factor: this.factor };
    if (this.isProfileChanged()) ingest.profile = this.profile;
    return { values: Object.fromEntries(changed), disk_bytes: this.disk, ingest };
  }
}

/** Say what is wrong with an input; the browser would in its own language. */
function whyBad(input) {
  const { rangeUnderflow, rangeOverflow, patternMismatch } = input.validity;
  if (rangeUnderflow || rangeOverflow) {
    return input.max === "" ? t("field_bad_least", { minimum: input.min }) : t("field_bad_range", { minimum: input.min, maximum: input.max });
  }
  return patternMismatch ? t("field_bad_hours") : t("field_bad_number");
}

function positive(text) {
  const value = Number(text);
  return text !== null && text !== "" && Number.isFinite(value) && value > 0 ? value : null;
}
