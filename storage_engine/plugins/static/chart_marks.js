// The lane of marks over the panes: one tab stop, arrow keys from mark to mark, and what a mark says.

import { h, newId, replace } from "./dom.js";
import { moment } from "./format.js";
import { markIcon } from "./icons.js";
import { counted, t } from "./language.js";

const APART_PX = 13;

/** Of how many things marks tell: the server makes one of many. */
const together = (marks) => marks.reduce((sum, mark) => sum + (mark.count ?? 1), 0);

/** The marks of a chart; those that would cover each other become one. */
export class MarkLane {
  constructor(chart) {
    this.chart = chart;
    this.marks = [];
    this.active = null;
    this.tip = h("div", { class: "tip", role: "tooltip", id: newId("tip"), hidden: true });
    this.row = h("div", { class: "lane-row", role: "group", "aria-label": t("marks_label") });
    this.element = h("div", { class: "lane", on: { keydown: (event) => this.onKey(event) } }, this.row, this.tip);
  }

  show(marks) {
    this.marks = marks;
    this.place();
  }

  /** Put each mark over its moment. */
  place() {
    const plot = this.chart.plots[0];
    if (!plot) return;
    const left = plot.bbox.left / window.devicePixelRatio;
    const width = plot.bbox.width / window.devicePixelRatio;
    const clusters = [];
    for (const mark of this.marks) {
      if (mark.at_ms < this.chart.start || mark.at_ms > this.chart.end) continue;
      const x = left + ((mark.at_ms - this.chart.start) / (this.chart.end - this.chart.start)) * width;
      const last = clusters[clusters.length - 1];
      if (last && x - last.x < APART_PX) last.marks.push(mark);
      else clusters.push({ x, marks: [mark] });
    }
    const focused = this.row.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    this.hide();
    this.element.hidden = this.marks.length === 0;
    this.row.replaceChildren(...clusters.map((one, n) => this.button(one, n === clusters.length - 1)));
    if (focused) this.row.querySelector(`[data-key="${focused}"]`)?.focus({ preventScroll: true });
  }

  button(cluster, isStop) {
    const [first] = cluster.marks;
    const causes = new Set(cluster.marks.map((mark) => mark.cause));
    const tone = cluster.marks.some((mark) => mark.tone === "bad") ? "bad" : first.tone;
    const count = together(cluster.marks);
    const many = count > 1;
    const label = cluster.marks.length > 1 ? counted("marks_together", count) : `${moment(first.at_ms)} ${first.label}`;
    return h(
      "button",
      {
        type: "button",
        class: `mark mark-${tone}`,
        tabindex: isStop ? "0" : "-1",
        "aria-label": label,
        "aria-describedby": this.tip.id,
        "data-key": `mark-${first.at_ms}`,
        vars: { "--x": `${cluster.x}px` },
        on: {
          focus: () => this.say(cluster),
          blur: () => this.hide(),
          mouseenter: () => this.say(cluster),
          mouseleave: () => this.hide(),
          click: () => (many ? this.zoomTo(cluster.marks) : first.href && window.location.assign(first.href)),
        },
      },
      markIcon(causes.size > 1 ? "several" : first.cause),
    );
  }

  zoomTo(marks) {
    const [from, to] = [marks[0].at_ms, Math.max(...marks.map((mark) => mark.until_ms ?? mark.at_ms))];
    const around = Math.max((to - from) * 0.25, 1_800_000);
    this.chart.zoom(from - around, to + around);
  }

  say(cluster) {
    this.active = cluster.marks;
    const shown = cluster.marks.slice(-4);
    replace(
      this.tip,
      cluster.marks.length > shown.length ? h("p", null, counted("marks_together", together(cluster.marks))) : null,
      shown.map((mark) => [h("p", { class: "tip-title" }, moment(mark.at_ms), " ", mark.label), h("p", null, mark.text)]),
      h("p", { class: "dim" }, together(cluster.marks) > 1 ? t("mark_zoom") : shown[0].href ? t("mark_open") : t("mark_no_report")),
    );
    this.tip.hidden = false;
    const room = this.element.clientWidth - this.tip.offsetWidth;
    this.tip.style.setProperty("--x", `${Math.max(0, Math.min(room, cluster.x - this.tip.offsetWidth / 2))}px`);
    this.chart.redraw();
  }

  hide() {
    if (this.active === null) return;
    this.active = null;
    this.tip.hidden = true;
    this.chart.redraw();
  }

  onKey(event) {
    const buttons = [...this.row.children];
    const here = buttons.indexOf(document.activeElement);
    const to = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (event.key === "Escape") this.hide();
    if (to === undefined || here < 0 || !buttons[to]) return;
    event.preventDefault();
    buttons[here].tabIndex = -1;
    buttons[to].tabIndex = 0;
    buttons[to].focus();
  }
}
