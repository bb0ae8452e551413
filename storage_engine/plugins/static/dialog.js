// One dialog at a time; the browser keeps the focus in it, and gives it back.

import { h, newId } from "./dom.js";
import { t } from "./language.js";

let open = null;

/** Open a dialog with a title, what it says, and its buttons beside the one that closes it; `onClose` is called then. */
export function openDialog(title, content, buttons, onClose) {
  closeDialog();
  const id = newId("dialog");
  const dialog = h(
    "dialog",
    { class: "dialog", "aria-labelledby": id },
    h("h2", { id }, title),
    h("div", { class: "dialog-body" }, content),
    h("div", { class: "dialog-buttons" }, h("button", { type: "button", class: "button", on: { click: () => dialog.close() } }, t("close")), buttons),
  );
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (open === dialog) open = null;
    onClose();
  });
  document.body.append(dialog);
  dialog.showModal();
  open = dialog;
}

/** Close the dialog, if one is open. */
export function closeDialog() {
  open?.close();
}
