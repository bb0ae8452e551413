// Zoom and pan by wheel, fingers and a shifted drag. A plain wheel scrolls the page, as everywhere.

const WHEEL_STEP = 1.2;

/** Listens on a chart's panes until `end` is called. */
export class Gestures {
  constructor(chart) {
    this.chart = chart;
    this.fingers = new Map();
    this.before = null;
    this.ending = new AbortController();
    const { signal } = this.ending;
    const area = chart.stack;
    area.addEventListener("wheel", (event) => this.wheel(event), { passive: false, signal });
    area.addEventListener("dblclick", () => this.chart.options.onReset?.(), { signal });
    area.addEventListener("pointerdown", (event) => this.down(event), { signal, capture: true });
    area.addEventListener("pointermove", (event) => this.move(event), { signal });
    for (const type of ["pointerup", "pointercancel", "pointerleave"]) {
      area.addEventListener(type, (event) => this.up(event), { signal });
    }
    // A shifted drag moves the span: uPlot would select by it.
    area.addEventListener("mousedown", (event) => event.shiftKey && event.stopPropagation(), { signal, capture: true });
  }

  /** Return the moment under a place of the screen. */
  momentAt(clientX) {
    const plot = this.chart.plots[0];
    const box = plot.over.getBoundingClientRect();
    return plot.posToVal(clientX - box.left, "x");
  }

  share(pixels) {
    return pixels / this.chart.plots[0].over.getBoundingClientRect().width;
  }

  wheel(event) {
    if (this.chart.plots.length === 0) return;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.chart.zoomBy(event.deltaY > 0 ? WHEEL_STEP : 1 / WHEEL_STEP, this.momentAt(event.clientX));
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
      event.preventDefault();
      this.chart.pan(this.share(event.deltaX || event.deltaY));
    }
  }

  down(event) {
    if (event.pointerType === "mouse" && !event.shiftKey) return;
    this.fingers.set(event.pointerId, event.clientX);
    this.before = this.spread();
  }

  move(event) {
    if (!this.fingers.has(event.pointerId)) return;
    this.fingers.set(event.pointerId, event.clientX);
    const now = this.spread();
    const { middle, width } = this.before;
    if (this.fingers.size > 1 && width > 0 && now.width > 0) {
      this.chart.zoomBy(width / now.width, this.momentAt(now.middle));
    }
    if (now.middle !== middle) this.chart.pan(this.share(middle - now.middle));
    this.before = now;
  }

  up(event) {
    if (this.fingers.delete(event.pointerId)) this.before = this.spread();
  }

  spread() {
    const places = [...this.fingers.values()];
    const [low, high] = [Math.min(...places), Math.max(...places)];
    return { middle: (low + high) / 2, width: high - low };
  }

  end() {
    this.ending.abort();
  }
}
