// The page: it follows Airflow's theme and language, and shows the view that the address names.

import { showAllStores } from "./all_stores.js";
import { ask } from "./api.js";
import { h, replace } from "./dom.js";
import { followLanguage, onLanguage, t } from "./language.js";
import { showStore } from "./one_store.js";
import { emptyBox, problemBox, waiting } from "./problem.js";
import { link, onPlace, place, tellAirflow } from "./router.js";
import { followTheme } from "./theme.js";
import { browserZone, chooseZone, onZone, takeStoreZone, zone, zones } from "./zone.js";

const main = h("main", { id: "main" }, h("div", { class: "page" }));
const foot = h("footer", { class: "foot" });
let endView = null;
let shown = "";
let painted = "";
let store = null;

function viewName({ path }) {
  return path[0] === "store" && path[1] ? `store ${path[1]} ${path[2] ?? ""}` : "stores";
}

function paintFoot() {
  const names = zones();
  const told = JSON.stringify([names, zone(), t("times_in")]);
  // Somebody may be choosing right now.
  if (told === painted) return;
  painted = told;
  const options = names.map(([word, name]) => h("option", { value: name, selected: name === zone() }, `${name} (${t(word)})`));
  const id = "zone";
  replace(
    foot,
    h("label", { for: id }, t("times_in")),
    h("select", { id, "data-key": "zone", on: { change: (event) => chooseZone(event.target.value) } }, options.length > 0 ? options : h("option", null, browserZone())),
    h("span", null, t("units_note")),
  );
}

/** Show what the address names; where only the view's own part changed, the view is shown again. */
function show({ keepsFocus = false } = {}) {
  const at = place();
  const before = shown;
  shown = viewName(at);
  endView?.();
  const page = main.firstElementChild;
  window.scrollTo(0, before === shown ? window.scrollY : 0);
  if (store !== (at.path[0] === "store" ? at.path[1] : null)) takeStoreZone(null);
  store = at.path[0] === "store" ? at.path[1] : null;
  if (at.path[0] === "store" && at.path[1]) {
    document.title = t("title_store", { store: at.path[1] });
    endView = showStore(page, at.path[1], at.path[2] ?? "", at.query, (isShown) => (isShown ? again() : paintFoot()));
  } else {
    document.title = t("title");
    endView = showAllStores(page, at.query);
  }
  paintFoot();
  // A reader of the screen is told where it is now.
  if (before && before !== shown && !keepsFocus) main.querySelector("h1")?.focus({ preventScroll: true });
}

/** Show the view again with other words or in another zone; what is focused stays so. */
function again() {
  queueMicrotask(() => {
    const key = document.activeElement?.dataset?.key;
    show({ keepsFocus: true });
    if (key) document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
  });
}

/** The tab of a DAG shows the store that the DAG manages, or that it manages none. */
async function showDag(dag) {
  const page = main.firstElementChild;
  replace(page, waiting());
  try {
    const { store } = await ask("dag", { query: { dag } });
    if (store === null) {
      document.title = t("title");
      replace(page, emptyBox(t("no_store_of_dag", { dag }), t("no_store_of_dag_do"), h("p", null, h("a", { href: link([]) }, t("all_stores")))));
      window.addEventListener("hashchange", start, { once: true });
      return;
    }
    window.history.replaceState(window.history.state, "", link(["store", store]));
    start();
  } catch (error) {
    replace(page, problemBox(error, () => showDag(dag)));
  }
}

function start() {
  onPlace(() => show());
  onLanguage(() => again());
  onZone(() => again());
  show();
  tellAirflow();
}

followTheme();
followLanguage();
document.body.replaceChildren(main, foot);
paintFoot();
const dag = new URLSearchParams(window.location.search).get("dag");
if (dag && !window.location.hash) showDag(dag);
else start();
