// The run that is drawn beside the chosen one in the charts.

import { byId, h, show } from "./dom.js";
import { nameRun, shortId } from "./format.js";

/** Offer the other runs of the list, and read the one that is chosen. */
export function mountOverlay(store, { api, complain }) {
  const choice = byId("overlay");
  let offered = "";

  store.on(["runs", "chosen", "detail"], ({ runs, chosen, overlay }) => {
    if (overlay && overlay.beside !== chosen) store.set({ overlay: null });
    const others = runs.items.filter((run) => run.run !== chosen);
    const key = JSON.stringify([chosen, others.map((run) => [run.run, run.name])]);
    if (key === offered) return;
    offered = key;
    const before = overlay?.beside === chosen ? choice.value : "";
    choice.replaceChildren(
      h("option", { value: "" }, "no other run"),
      ...others.map((run) => h("option", { value: run.run }, `${nameRun(run)} · ${shortId(run.run)}`)),
    );
    choice.value = others.some((run) => run.run === before) ? before : "";
    show(byId("overlay-line"), others.length > 0);
  });

  choice.addEventListener("change", async () => {
    const [run, beside] = [choice.value, store.state.chosen];
    if (!run) return store.set({ overlay: null });
    try {
      const [detail, rounds] = await Promise.all([api.readRun(run), api.listRounds(run, 0)]);
      if (choice.value === run && store.state.chosen === beside) store.set({ overlay: { beside, detail, rounds } });
    } catch (error) {
      complain(error);
    }
  });
}
