// The chart: panes over one time axis, with marks, a cursor for mouse, touch and keys, and the data as a table.

import { counted, t } from "./language.js";
import { Gestures } from "./chart_gestures.js";
import { MarkLane } from "./chart_marks.js";
import { paneOptions } from "./chart_panes.js";
import { dataTable } from "./chart_table.js";
import { h, newId, replace } from "./dom.js";
import { moment } from "./format.js";
import { onTheme } from "./theme.js";

const READ_ALOUD_AFTER_MS = 350;

/**
 * A chart in `host`. A model has `times_ms`, `start_ms`, `end_ms`, and:
 * - `panes`: {key, title, height, text(value), axisText(value), increments, limits(low, high),
 *   series: [{label, values, colour, fill, width, dash, stepped}], lines: [{label, colour, dash, at: [{at_ms, value}]}]}
 * - `spans`: {kind, label, spans: [[start, end]]} drawn over every pane
 * - `marks`: {at_ms, cause, label, text, href, tone}
 * `options`: label, lastWords (beside the newest point), resetHelp (what a double-click does), onReset(),
 * onRange(start, end), limits(start, end), shortestMs.
 */
export class Chart {
  constructor(host, options) {
    this.options = options;
    this.plots = [];
    this.index = null;
    this.model = null;
    this.structure = "";
    this.readAloud = null;
    const help = newId("chart-help");
    this.readout = h("div", { class: "readout" });
    this.live = h("div", { class: "hidden-text", "aria-live": "polite" });
    this.lane = new MarkLane(this);
    this.stack = h("div", { class: "panes" });
    this.plotArea = h(
      "div",
      {
        class: "plot-area",
        tabindex: "0",
        role: "application",
        "aria-roledescription": t("chart_role"),
        "aria-label": options.label,
        "aria-describedby": help,
        "data-key": "chart",
        on: {
          keydown: (event) => this.onKey(event),
          blur: () => this.moveTo(null),
        },
      },
      this.stack,
    );
    this.empty = h("p", { class: "chart-empty", hidden: true });
    this.table = dataTable(this);
    this.element = h(
      "figure",
      { class: "chart" },
      this.readout,
      h("div", { class: "lane-and-panes" }, this.lane.element, this.plotArea, this.empty),
      h("figcaption", { class: "chart-help", id: help }, t("chart_help"), " ", options.resetHelp),
      this.table.element,
      this.live,
    );
    replace(host, this.element);
    this.gestures = new Gestures(this);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.stack);
    this.endTheme = onTheme(() => this.redraw());
  }

  /** Show a model; the cursor stays at its moment. */
  show(model) {
    const at = this.index === null ? null : this.model?.times_ms[this.index];
    this.model = model;
    const structure = JSON.stringify(
      model.panes.map((pane) => [pane.key, pane.title, pane.height, pane.series.map((one) => [one.label, one.dash])]),
    );
    if (structure !== this.structure) this.build(structure);
    for (const [n, pane] of model.panes.entries()) {
      this.plots[n].pane = pane;
      this.plots[n].setData([model.times_ms, ...pane.series.map((one) => one.values)], false);
    }
    this.empty.hidden = model.times_ms.length > 0;
    this.empty.textContent = model.empty ?? t("chart_empty");
    this.setRange(model.start_ms, model.end_ms);
    this.lane.show(model.marks ?? []);
    this.moveTo(at === null || at === undefined ? null : this.nearest(at), { aloud: false });
    this.table.refresh();
  }

  build(structure) {
    for (const plot of this.plots) plot.destroy();
    this.structure = structure;
    const width = this.width();
    this.plots = this.model.panes.map((pane, n) => {
      const place = h("div", { class: `pane pane-${pane.key}` }, h("div", { class: "pane-title" }, pane.title));
      this.stack.append(place);
      const isLast = n === this.model.panes.length - 1;
      const plot = new window.uPlot(paneOptions(this, pane, width, isLast), [[]], place);
      plot.pane = pane;
      return plot;
    });
    this.stack.replaceChildren(...this.plots.map((plot) => plot.root.parentElement));
  }

  width() {
    return Math.max(200, this.stack.clientWidth || this.stack.parentElement.clientWidth || 600);
  }

  resize() {
    for (const plot of this.plots) plot.setSize({ width: this.width(), height: plot.height });
    this.lane.place();
  }

  redraw() {
    for (const plot of this.plots) plot.redraw(false);
  }

  /** Show a span of time in every pane. */
  setRange(startMs, endMs) {
    this.start = startMs;
    this.end = endMs;
    for (const plot of this.plots) plot.batch(() => plot.setScale("x", { min: startMs, max: endMs }));
    this.lane.place();
  }

  /** Go to another span, and say so to who made the chart. */
  zoom(startMs, endMs) {
    let [start, end] = [Math.round(startMs), Math.round(endMs)];
    const shortest = this.options.shortestMs ?? 600_000;
    if (end - start < shortest) {
      const middle = (start + end) / 2;
      [start, end] = [Math.round(middle - shortest / 2), Math.round(middle + shortest / 2)];
    }
    const [from, to] = this.options.limits?.(start, end) ?? [start, end];
    this.setRange(from, to);
    this.options.onRange?.(from, to);
  }

  /** Make the span larger or smaller round a moment. */
  zoomBy(factor, aroundMs = (this.start + this.end) / 2) {
    this.zoom(aroundMs - (aroundMs - this.start) * factor, aroundMs + (this.end - aroundMs) * factor);
  }

  /** Move the span by a share of itself. */
  pan(share) {
    const by = (this.end - this.start) * share;
    this.zoom(this.start + by, this.end + by);
  }

  /** Return the index of the point nearest to a moment. */
  nearest(ms) {
    const times = this.model.times_ms;
    if (times.length === 0) return null;
    let [low, high] = [0, times.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] < ms) low = middle + 1;
      else high = middle;
    }
    return low > 0 && ms - times[low - 1] < times[low] - ms ? low - 1 : low;
  }

  /** Put the cursor at a point, in every pane; null: nowhere, and the newest point is read. */
  moveTo(index, { aloud = true, by = null } = {}) {
    this.index = index;
    const at = index === null ? null : this.model.times_ms[index];
    for (const plot of this.plots) {
      if (plot === by) continue;
      plot.setCursor({ left: at === null ? -10 : plot.valToPos(at, "x"), top: at === null ? -10 : 0 }, false);
    }
    this.read();
    clearTimeout(this.readAloud);
    if (aloud && index !== null) {
      this.readAloud = setTimeout(() => {
        this.live.textContent = this.reading(index);
      }, READ_ALOUD_AFTER_MS);
    }
  }

  /** Return what the chart says of a point, as one sentence. */
  reading(index) {
    const values = this.model.panes.flatMap((pane) =>
      pane.series.map((one) => `${one.label} ${pane.text(one.values[index] ?? null)}`),
    );
    return [moment(this.model.times_ms[index]), ...values].join(", ");
  }

  read() {
    if (!this.model || this.model.times_ms.length === 0) {
      replace(this.readout);
      return;
    }
    const index = this.index ?? this.lastIndex();
    const items = this.model.panes.flatMap((pane) =>
      pane.series.map((one) =>
        h(
          "span",
          { class: "reading" },
          h("i", { class: `key${one.dash ? " key-dashed" : ""}`, vars: { "--key": `var(${one.colour})` } }),
          h("span", { class: "reading-label" }, one.label),
          h("b", null, pane.text(one.values[index] ?? null)),
        ),
      ),
    );
    const when = this.index === null ? this.options.lastWords : "";
    replace(
      this.readout,
      h("span", { class: "reading-time" }, moment(this.model.times_ms[index]), when ? h("small", null, when) : null),
      items,
    );
  }

  lastIndex() {
    const times = this.model.times_ms;
    let index = times.length - 1;
    const isKnown = (at) => this.model.panes.some((pane) => pane.series.some((one) => (one.values[at] ?? null) !== null));
    while (index > 0 && (times[index] > this.end || !isKnown(index))) index -= 1;
    return index;
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.model === null) return;
    const last = this.model.times_ms.length - 1;
    const step = event.shiftKey ? 10 : 1;
    const here = this.index ?? this.lastIndex();
    const acts = {
      ArrowLeft: () => this.moveTo(this.index === null ? here : Math.max(0, here - step)),
      ArrowRight: () => this.moveTo(Math.min(last, here + step)),
      Home: () => this.moveTo(this.nearest(this.start)),
      End: () => this.moveTo(this.lastIndex()),
      PageUp: () => this.pan(-0.5),
      PageDown: () => this.pan(0.5),
      "+": () => this.zoomBy(0.5, this.model.times_ms[here]),
      "=": () => this.zoomBy(0.5, this.model.times_ms[here]),
      "-": () => this.zoomBy(2, this.model.times_ms[here]),
      Escape: () => this.moveTo(null),
    };
    const act = acts[event.key];
    if (!act || (last < 0 && event.key.length > 1)) return;
    event.preventDefault();
    act();
    this.keepInSight();
  }

  keepInSight() {
    if (this.index === null) return;
    const at = this.model.times_ms[this.index];
    const span = this.end - this.start;
    if (at < this.start) this.zoom(at, at + span);
    else if (at > this.end) this.zoom(at - span, at);
  }

  /** Say how many points are shown, for the table. */
  countText() {
    return counted("chart_points", this.model?.times_ms.length ?? 0);
  }

  destroy() {
    this.observer.disconnect();
    this.gestures.end();
    this.endTheme();
    clearTimeout(this.readAloud);
    for (const plot of this.plots) plot.destroy();
  }
}
