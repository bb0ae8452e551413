// What if: other settings, another disk, another ingest, and the next 14 days drawn beside today's.

import { ask, ofStore, send } from "./api.js";
import { Chart } from "./chart.js";
import { courseFigures, courseModel } from "./course_chart.js";
import { h, replace } from "./dom.js";
import { adviceList } from "./advice.js";
import { number } from "./format.js";
import { named, t } from "./language.js";
import { notice } from "./notice.js";
import { block } from "./now.js";
import { emptyBox, problemBox, waiting } from "./problem.js";
import { note } from "./router.js";
import { WhatIfForm } from "./what_if_form.js";

const SETTLE_MS = 250;
const DAYS = 14;
const MENDED_BY_A_LOOK = new Set(["no-store", "no-rules", "no-start"]);
const AGAIN_WHEN_BUSY_MS = 1_500;

/** Show the form and both courses of a store in `host`; return what ends it. */
export function showWhatIf(host, { store, query }) {
  replace(host, waiting());
  const ending = new AbortController();
  let chart = null;
  let asking = null;
  let settling = null;
  let isZoomed = false;

  async function begin() {
    try {
      const settings = await ask(ofStore(store, "what-if"), { signal: ending.signal });
      if (!settings.can) {
        replace(host, emptyBox(t("what_if_cannot"), named("why", settings.why), MENDED_BY_A_LOOK.has(settings.why) ? h("p", { class: "dim" }, t("what_if_cannot_do")) : null));
        return;
      }
      build(settings);
    } catch (error) {
      if (error.name !== "AbortError") replace(host, problemBox(error, begin));
    }
  }

  function build(settings) {
    const problem = h("div");
    const place = h("div", { class: "chart-place" });
    const figures = h("div");
    const advice = h("div");
    const status = h("p", { class: "dim small", role: "status" });
    const form = new WhatIfForm(settings, query, () => {
      note(["store", store, "what-if"], form.query());
      clearTimeout(settling);
      settling = setTimeout(compute, SETTLE_MS);
    });
    replace(
      host,
      h(
        "div",
        { class: "what-if" },
        form.element,
        h(
          "div",
          { class: "what-if-result" },
          problem,
          h("section", { class: "block block-chart", "aria-label": t("what_if_chart") }, place, status),
          h("section", { class: "block" }, h("h2", null, t("what_if_compared")), figures),
          h("section", { class: "block" }, h("h2", null, t("advice_title")), advice),
        ),
      ),
    );
    chart = new Chart(place, {
      label: t("what_if_label", { store }),
      lastWords: t("chart_end"),
      resetHelp: t("chart_reset_course"),
      shortestMs: 3_600_000,
      onRange: () => {
        isZoomed = true;
      },
      onReset: () => {
        isZoomed = false;
        if (chart.model) chart.setRange(chart.model.start_ms, chart.model.end_ms);
      },
    });

    async function compute() {
      asking?.abort();
      asking = new AbortController();
      const wrong = form.check();
      if (wrong) {
        status.textContent = wrong;
        return;
      }
      status.textContent = t("computing");
      try {
        const answer = await send(ofStore(store, "what-if"), { ...form.body(), days: DAYS }, { signal: asking.signal });
        replace(problem);
        show(answer);
      } catch (error) {
        if (error.name === "AbortError") return;
        status.textContent = "";
        if (error.status === 429) {
          status.textContent = t("computing");
          settling = setTimeout(compute, AGAIN_WHEN_BUSY_MS);
        } else if (error.detail && [400, 422, 503].includes(error.status)) {
          replace(problem, notice("warning", t("what_if_refused"), h("p", null, error.detail)));
        } else {
          replace(problem, problemBox(error, compute));
        }
      }
    }

    function show(answer) {
      const model = courseModel(answer);
      const span = [chart.start, chart.end];
      chart.show(model);
      if (isZoomed) chart.setRange(...span);
      replace(figures, courseFigures(answer));
      replace(advice, adviceList(answer.advice));
      status.textContent = t("computed", { ms: number(answer.took_ms), days: number(DAYS) });
    }

    compute();
  }

  begin();
  return () => {
    ending.abort();
    asking?.abort();
    clearTimeout(settling);
    chart?.destroy();
  };
}

