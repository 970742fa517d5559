// Pause, resume, cancel, name, same again, export.

import { byId, setText, show } from "./dom.js";
import { onSubmit, prepareDialog, saveFile } from "./dialogs.js";
import { shortId } from "./format.js";
import { ACTIVE } from "./runs.js";

/** The buttons of the chosen run; they call `onChanged` after a change, and `onProblem` with an error. */
export function mountSteering(store, { api, onChanged, onProblem, onAgain }) {
  const confirm = byId("confirm-dialog");
  const menu = byId("export");
  prepareDialog(confirm);
  prepareDialog(byId("label-dialog"));

  store.on(["detail", "about"], ({ detail, about }) => showButtons(detail, about?.may_change ?? false));
  byId("pause").addEventListener("click", async () => {
    const { detail } = store.state;
    await attempt(() => (canResume(detail) ? api.resume(detail.run) : api.pause(detail.run)));
  });
  byId("cancel").addEventListener("click", () => {
    setText(byId("confirm-error"), "");
    confirm.showModal();
  });
  onSubmit(byId("confirm-form"), byId("confirm-error"), async () => {
    onChanged(await api.cancel(store.state.detail.run));
    confirm.close();
  });
  byId("label").addEventListener("click", () => {
    const { name, note } = store.state.detail;
    byId("label-name").value = name;
    byId("label-note").value = note;
    setText(byId("label-error"), "");
    byId("label-dialog").showModal();
  });
  onSubmit(byId("label-form"), byId("label-error"), async () => {
    const label = { name: byId("label-name").value, note: byId("label-note").value };
    onChanged(await api.putLabel(store.state.detail.run, label));
    byId("label-dialog").close();
  });
  byId("again").addEventListener("click", () => onAgain(store.state.detail).catch(onProblem));
  menu.addEventListener("click", (event) => {
    const { format, table } = event.target.closest("button")?.dataset ?? {};
    if (!format) return;
    menu.open = false;
    download(format, table).catch(onProblem);
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
  document.addEventListener("click", (event) => {
    if (!menu.contains(event.target)) menu.open = false;
  });

  async function attempt(act) {
    byId("pause").disabled = true;
    try {
      onChanged(await act());
    } catch (error) {
      onProblem(error);
    } finally {
      byId("pause").disabled = !store.state.about?.may_change;
    }
  }

  async function download(format, table) {
    const { run } = store.state.detail;
    const answer = await api.export(run, { format, table });
    saveFile(await answer.blob(), `hubbub-${shortId(run)}${table ? `-${table}` : ""}.${format}`);
  }
}

function canResume(run) {
  return run.state === "paused" || run.pausing;
}

function showButtons(run, mayChange) {
  if (!run) return;
  const pause = byId("pause");
  show(pause, ACTIVE.includes(run.state));
  setText(pause, run.state === "paused" ? "Resume" : run.pausing ? "Do not pause" : "Pause");
  show(byId("cancel"), ACTIVE.includes(run.state));
  for (const id of ["pause", "cancel", "label", "again"]) byId(id).disabled = !mayChange;
  show(byId("may-not-change"), !mayChange);
}
