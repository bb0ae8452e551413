// What a person may start here. Each act is a DAG run in the user's own name, and a dry run of it comes first.

import { ask, askAirflow, ofStore, postToAirflow, reportUrl } from "./api.js";
import { closeDialog, openDialog } from "./dialog.js";
import { h, replace } from "./dom.js";
import { bytes } from "./format.js";
import { counted, t } from "./language.js";
import { notice } from "./notice.js";

const LOOK_EVERY_MS = 1_500;
const ENDED = new Set(["success", "failed"]);
const ACTS = [
  { name: "dry_run", purpose: "retention", params: { manual: true }, dryOnly: true },
  { name: "clean_up", purpose: "retention", params: { manual: true } },
  { name: "forced", purpose: "forced_cleanup", params: {}, asks: true },
];

/** Return the buttons of a store; `reload` is called when a run has ended. */
export function actions(shared, reload) {
  const element = h("div", { class: "actions" });
  return {
    element,
    show({ dags }) {
      const possible = ACTS.map((act) => ({ ...act, dag: dags?.find((dag) => dag.purpose === act.purpose) })).filter((act) => act.dag?.may_run);
      const buttons = possible.map((act) =>
        h(
          "button",
          { type: "button", class: `button button-${act.name}`, "data-key": `act-${act.name}`, on: { click: () => confirm(act, shared, reload) } },
          t(`act_${act.name}`),
        ),
      );
      replace(element, buttons);
    },
    end() {
      closeDialog();
    },
  };
}

function confirm(act, shared, reload) {
  const ending = new AbortController();
  const { signal } = ending;
  const { store } = shared;
  const state = { segments: "", target_used_percent: "", reason: "", shown: null };
  const params = h("div");
  const result = h("div", { "aria-live": "polite" });
  const dry = h("button", { type: "button", class: "button button-main", on: { click: () => start(true) } }, t("start_dry_run"));
  const real = act.dryOnly ? null : h("button", { type: "button", class: "button button-danger", disabled: true, on: { click: () => start(false) } }, t(`start_${act.name}`));
  const conf = (isDry) => ({ ...act.params, ...(act.asks ? asked(state) : {}), dry_run: isDry });
  const paintParams = () => replace(params, h("pre", { tabindex: "0", "aria-label": t("params") }, JSON.stringify(conf(act.dryOnly || real?.disabled !== false), null, 2)));
  const onInput = () => {
    // What was tried is not what would be done any more.
    if (real) real.disabled = true;
    paintParams();
  };

  openDialog(t(`act_${act.name}`), [
    h("p", null, t(`act_${act.name}_means`, { store })),
    act.dag.is_paused ? notice("warning", t("dag_paused", { dag: act.dag.dag_id })) : null,
    act.asks ? forcedFields(state, onInput) : null,
    h("dl", { class: "plan" }, h("dt", null, t("dag")), h("dd", null, h("code", null, act.dag.dag_id)), h("dt", null, t("params")), h("dd", null, params)),
    dueNow(shared.now()),
    result,
  ], [dry, real], () => ending.abort());
  paintParams();

  async function start(isDry) {
    if (act.asks && state.reason.trim().length < 3) {
      replace(result, notice("warning", t("say_why")));
      return;
    }
    dry.disabled = true;
    if (real) real.disabled = true;
    replace(result, h("p", { role: "status" }, t("starting")));
    // What is typed while the run goes was not tried.
    const tried = JSON.stringify(conf(false));
    try {
      const dag = encodeURIComponent(act.dag.dag_id);
      const run = await postToAirflow(`dags/${dag}/dagRuns`, { logical_date: null, conf: conf(isDry) });
      await follow(run.dag_run_id, isDry, tried);
    } catch (error) {
      if (!signal.aborted) replace(result, notice("urgent", t(error.status === 403 ? "act_forbidden" : "act_failed"), error.detail ? h("p", null, error.detail) : null));
    }
    dry.disabled = false;
    reload();
  }

  async function follow(runId, isDry, tried) {
    const at = `dags/${encodeURIComponent(act.dag.dag_id)}/dagRuns/${encodeURIComponent(runId)}`;
    let run = { state: "queued" };
    while (!ENDED.has(run.state)) {
      if (signal.aborted) return;
      replace(result, h("p", { role: "status" }, t(act.dag.is_paused ? "run_waits" : "run_goes", { run: runId, state: run.state })));
      await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
      run = await askAirflow(at);
    }
    const told = await ask(ofStore(store, "run"), { query: { dag: act.dag.dag_id, run: runId } });
    const report = reportUrl(store, { dag_id: act.dag.dag_id, run_id: runId });
    const isBad = run.state === "failed";
    replace(
      result,
      notice(isBad ? "urgent" : "ok", told.story?.headline ?? t(isBad ? "run_failed" : "run_ended")),
      (told.story?.answers ?? []).map((one) => h("p", { class: "small" }, h("b", null, one.question), " ", one.short)),
      h("p", null, h("a", { href: report }, t("open_report"))),
    );
    if (real && isDry && !isBad && tried === JSON.stringify(conf(false))) {
      real.disabled = false;
      replace(params, h("pre", { tabindex: "0", "aria-label": t("params") }, JSON.stringify(conf(false), null, 2)));
    }
  }
}

/** Say what the broker's own rules would take now, as the last look found. */
function dueNow(answer) {
  const due = (answer?.totals ?? []).find((one) => one.place === "due");
  const [count, size] = [due?.segments ?? 0, due?.size_bytes ?? 0];
  return h("p", { class: "dim" }, count > 0 ? t("due_now", { segments: counted("segments", count), size: bytes(size) }) : t("due_none"));
}

function forcedFields(state, onInput) {
  const field = (name, props) => {
    const set = (event) => {
      state[name] = event.target.value;
      onInput();
    };
    return h("label", { class: "field" }, h("span", null, t(`forced_${name}`)), h("input", { ...props, value: state[name], on: { input: set } }), h("small", { class: "dim field-help" }, t(`forced_${name}_help`)));
  };
  return h(
    "div",
    { class: "forced-fields" },
    field("reason", { type: "text", required: true, minlength: 3 }),
    field("segments", { type: "number", min: 1, step: 1 }),
    field("target_used_percent", { type: "number", min: 0, max: 100, step: 1 }),
  );
}

function asked(state) {
  const count = (text) => (text === "" ? null : Number(text));
  return { segments: count(state.segments), target_used_percent: count(state.target_used_percent), reason: state.reason.trim() };
}
