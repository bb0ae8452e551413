// One pane of the chart: what uPlot is told, and what is drawn beside its lines.

import { moment } from "./format.js";
import { colour } from "./theme.js";
import { zone } from "./zone.js";

const LABEL_HEIGHT = 13;
const PANE_TOP = 22;
const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, "PingFang SC", "Noto Sans CJK SC", "Microsoft YaHei", sans-serif';
const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const AXIS_WIDTH = 62;
const TIME_AXIS_HEIGHT = 42;
const MOST_MARK_LINES = 70;
const GUTTER = 84;
const NARROW = 560;
/** So few are drawn as points, too: one alone has no line. */
const FEW_POINTS = 6;

/** Return what uPlot makes a pane by. */
export function paneOptions(chart, pane, width, isLast) {
  const own = () => chart.plots.find((plot) => plot.pane?.key === pane.key)?.pane ?? pane;
  return {
    width,
    height: pane.height + (isLast ? TIME_AXIS_HEIGHT : 0),
    ms: 1,
    tzDate: (ms) => window.uPlot.tzDate(new Date(ms), zone()),
    legend: { show: false },
    padding: [PANE_TOP, width < NARROW ? 10 : GUTTER, isLast ? 0 : 6, 0],
    scales: {
      x: { time: true, auto: false },
      y: { range: (_plot, low, high) => own().limits(low, high, own()) },
    },
    axes: [timeAxis(isLast), valueAxis(own, width)],
    series: [
      {},
      ...pane.series.map((one) => ({
        label: one.label,
        stroke: () => colour(one.colour),
        fill: one.fill ? () => colour(one.fill) : undefined,
        width: one.width ?? 1.5,
        dash: one.dash,
        paths: one.stepped ? window.uPlot.paths.stepped({ align: 1 }) : undefined,
        points: { show: (_plot, _n, first, last) => last - first < FEW_POINTS, size: 5, fill: () => colour(one.colour) },
        spanGaps: false,
      })),
    ],
    cursor: {
      x: true,
      y: false,
      drag: { x: true, y: false, setScale: false },
      points: { size: 7, fill: (_plot, n) => colour(pane.series[n - 1].colour), stroke: () => colour("--ground"), width: 2 },
      bind: { dblclick: () => null },
    },
    hooks: {
      drawClear: [(plot) => drawSpans(plot, chart.model)],
      draw: [(plot) => drawMarks(plot, chart), (plot) => drawLines(plot, own())],
      setSelect: [(plot) => takeSelection(plot, chart)],
      setCursor: [
        (plot) => {
          // Only where the mouse is: the others were moved by the chart itself.
          if (!plot.over.matches(":hover")) return;
          const index = plot.cursor.left < 0 ? null : plot.cursor.idx;
          if (index !== chart.index) chart.moveTo(index, { aloud: false, by: plot });
        },
      ],
    },
  };
}

function timeAxis(isLast) {
  return {
    stroke: () => colour("--dim"),
    font: FONT,
    size: isLast ? TIME_AXIS_HEIGHT : 0,
    gap: 6,
    space: 78,
    grid: { stroke: () => colour("--grid"), width: 1 },
    ticks: { show: isLast, stroke: () => colour("--line"), width: 1, size: 5 },
    values: isLast ? timeTexts : () => [],
  };
}

/** Return short texts: the day where a day begins, or where nothing says it yet; else the hour. */
function timeTexts(_plot, splits, _axis, _space, increment) {
  let before = "";
  return splits.map((ms) => {
    const [date, clock] = moment(ms).split(" ");
    const isNew = date !== before;
    before = date;
    if (increment >= DAY_MS) return date.slice(5);
    return isNew ? `${clock}\n${date.slice(5)}` : clock;
  });
}

function valueAxis(own, width) {
  return {
    stroke: () => colour("--dim"),
    font: FONT,
    size: width < NARROW ? 48 : AXIS_WIDTH,
    gap: 6,
    space: 26,
    incrs: own().increments,
    grid: { stroke: () => colour("--grid"), width: 1 },
    ticks: { show: false },
    values: (_plot, splits) => splits.map((value) => (value === null ? "" : own().axisText(value))),
  };
}

function takeSelection(plot, chart) {
  const { left, width } = plot.select;
  if (width < 4) return;
  const [start, end] = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  chart.zoom(start, end);
}

function inside(plot, draw) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  draw(ctx, bbox);
  ctx.restore();
}

/** Shade spans of time: windows quietly, refused writes so that they can't be overlooked. */
function drawSpans(plot, model) {
  if (!model) return;
  inside(plot, (ctx, box) => {
    for (const { kind, spans } of model.spans ?? []) {
      ctx.fillStyle = colour(`--span-${kind}`);
      for (const [start, end] of spans) {
        const from = plot.valToPos(start, "x", true);
        const to = Math.max(from + window.devicePixelRatio, plot.valToPos(end, "x", true));
        if (to < box.left || from > box.left + box.width) continue;
        ctx.fillRect(from, box.top, to - from, box.height);
        if (kind === "refused") hatch(ctx, Math.max(from, box.left), box.top, Math.min(to, box.left + box.width), box.height);
      }
    }
  });
}

function hatch(ctx, from, top, to, height) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(from, top, to - from, height);
  ctx.clip();
  ctx.strokeStyle = colour("--bad");
  ctx.lineWidth = window.devicePixelRatio;
  const step = 7 * window.devicePixelRatio;
  ctx.beginPath();
  for (let x = from - height; x < to; x += step) {
    ctx.moveTo(x, top + height);
    ctx.lineTo(x + height, top);
  }
  ctx.stroke();
  ctx.restore();
}

function drawMarks(plot, chart) {
  const marks = (chart.model?.marks ?? []).filter((mark) => mark.at_ms >= chart.start && mark.at_ms <= chart.end);
  inside(plot, (ctx, box) => {
    ctx.setLineDash([]);
    for (const mark of marks) {
      const x = Math.round(plot.valToPos(mark.at_ms, "x", true)) + 0.5;
      if (x < box.left || x > box.left + box.width) continue;
      const isActive = chart.lane.active?.includes(mark);
      // So many lines would hide what they are about.
      if (!isActive && marks.length > MOST_MARK_LINES) continue;
      ctx.strokeStyle = colour(isActive ? "--text" : "--mark-line");
      ctx.lineWidth = window.devicePixelRatio;
      ctx.beginPath();
      ctx.moveTo(x, box.top);
      ctx.lineTo(x, box.top + box.height);
      ctx.stroke();
    }
  });
}

/** Draw levels that something happens at: as steps where they were changed, with the last one's value beside them. */
function drawLines(plot, pane) {
  const lines = (pane.lines ?? []).filter((line) => line.at.length > 0);
  if (lines.length === 0) return;
  const { ctx, bbox } = plot;
  const ratio = window.devicePixelRatio;
  const right = bbox.left + bbox.width;
  const placed = [];
  inside(plot, () => {
    for (const line of lines) {
      ctx.strokeStyle = colour(line.colour);
      ctx.lineWidth = 1.25 * ratio;
      ctx.setLineDash(line.dash.map((part) => part * ratio));
      ctx.beginPath();
      const height = (value) => Math.round(plot.valToPos(value, "y", true)) + 0.5;
      let y = height(line.at[0].value);
      ctx.moveTo(bbox.left, y);
      for (const step of line.at.slice(1)) {
        const x = Math.max(bbox.left, plot.valToPos(step.at_ms, "x", true));
        ctx.lineTo(x, y);
        y = height(step.value);
        ctx.lineTo(x, y);
      }
      ctx.lineTo(right, y);
      ctx.stroke();
      placed.push({ line, y, value: line.at[line.at.length - 1].value });
    }
  });
  drawLabels(plot, placed.sort((one, other) => one.y - other.y), right);
}

function drawLabels(plot, placed, right) {
  const { ctx, bbox } = plot;
  const ratio = window.devicePixelRatio;
  const isNarrow = plot.width < NARROW;
  ctx.save();
  ctx.font = FONT.replace("11px", `${(isNarrow ? 10 : 11) * ratio}px`);
  ctx.textBaseline = "middle";
  ctx.textAlign = isNarrow ? "right" : "left";
  // Labels keep clear of each other: from the highest line down, then back up from the bottom.
  const height = LABEL_HEIGHT * ratio;
  const spots = placed.map(({ y }) => y);
  for (let n = 1; n < spots.length; n += 1) spots[n] = Math.max(spots[n], spots[n - 1] + height);
  const bottom = bbox.top + bbox.height - height / 2;
  for (let n = spots.length - 1; n >= 0; n -= 1) {
    spots[n] = Math.min(spots[n], n === spots.length - 1 ? bottom : spots[n + 1] - height);
  }
  placed.forEach(({ line, y, value }, n) => {
    const text = isNarrow ? `${value}` : `${line.label} ${value}`;
    ctx.fillStyle = colour(line.colour);
    if (isNarrow) {
      ctx.strokeStyle = colour("--ground");
      ctx.lineWidth = 3 * ratio;
      ctx.setLineDash([]);
      ctx.strokeText(text, right - 3 * ratio, spots[n]);
      ctx.fillText(text, right - 3 * ratio, spots[n]);
      return;
    }
    ctx.strokeStyle = colour(line.colour);
    ctx.lineWidth = ratio;
    ctx.setLineDash([]);
    ctx.beginPath();
    ctx.moveTo(right, y);
    ctx.lineTo(right + 5 * ratio, spots[n]);
    ctx.stroke();
    ctx.fillText(text, right + 8 * ratio, spots[n]);
  });
  ctx.restore();
}
