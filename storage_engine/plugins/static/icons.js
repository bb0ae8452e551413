// Shapes beside colours: each state is told by its form, too.

import { svg } from "./dom.js";

const SHAPES = {
  urgent: ["M5.2 1.5h5.6l3.7 3.7v5.6l-3.7 3.7H5.2l-3.7-3.7V5.2z", "M8 4.6v4.2M8 11.2v.3"],
  warning: ["M8 1.8 15 14H1z", "M8 6v3.9M8 11.9v.3"],
  ok: ["M8 1.4a6.6 6.6 0 1 1 0 13.2A6.6 6.6 0 0 1 8 1.4z", "m5 8.2 2.1 2.1L11 6.2"],
  note: ["M8 1.4a6.6 6.6 0 1 1 0 13.2A6.6 6.6 0 0 1 8 1.4z", "M8 7.2v4M8 4.6v.3"],
  unknown: ["M8 1.4a6.6 6.6 0 1 1 0 13.2A6.6 6.6 0 0 1 8 1.4z", "M6.2 6.3a1.9 1.9 0 1 1 2.5 2C8.2 8.5 8 8.8 8 9.4M8 11.5v.3"],
};

const MARKS = {
  "time-up": "M8 3a5 5 0 1 1 0 10A5 5 0 0 1 8 3z",
  "space-full": "M8 1.5 14.5 8 8 14.5 1.5 8z",
  manual: "M8 2.5 14.5 13.5h-13z",
  several: "M3 3h10v10H3z",
};

/** Draw the sign of a state; the word for it stands beside it. */
export function stateIcon(state) {
  const [body, sign] = SHAPES[state] ?? SHAPES.unknown;
  return svg(
    "svg",
    { class: `icon icon-${state}`, viewBox: "0 0 16 16", "aria-hidden": "true" },
    svg("path", { class: "icon-body", d: body }),
    svg("path", { class: "icon-sign", d: sign }),
  );
}

/** Draw the mark of a cleanup by its cause. */
export function markIcon(cause) {
  return svg(
    "svg",
    { class: "mark-icon", viewBox: "0 0 16 16", "aria-hidden": "true" },
    svg("path", { d: MARKS[cause] ?? MARKS.several }),
  );
}
