// Reads the page's data, and reads it again when events say that it changed.

import { createRefresher } from "./refresher.js";
import { FILTERS } from "./runs.js";

const PAGE = 50;
const COST_CHANGES = new Set(["round-released", "round-void", "run-completed", "run-failed", "run-cancelled"]);
const FINAL = new Set(["released", "void", "contradicted"]);
export const NO_RUNS = { items: [], next: null, total: 0 };

/** The page's reads. Nothing is read more than twice a second, and only rounds that may have changed. */
export function createReading(store, { api, onError, onUnknown }) {
  /** Read data of the chosen run; drop the answer if another run was chosen meanwhile. */
  function ofChosen(read, keep) {
    return async () => {
      const run = store.state.chosen;
      if (!run) return;
      const found = await read(run);
      if (store.state.chosen === run) keep(found);
    };
  }

  const query = () => ({ limit: PAGE, state: FILTERS.find(({ name }) => name === store.state.filter).states });

  async function readRuns() {
    const { filter } = store.state;
    const page = await api.listRuns(query());
    if (store.state.filter !== filter) return;
    const newest = new Set(page.items.map((run) => run.run));
    const older = store.state.runs.items.slice(PAGE).filter((run) => !newest.has(run.run));
    const next = older.length > 0 ? store.state.runs.next : page.next;
    store.set({ runs: { items: [...page.items, ...older], next, total: page.total }, runsLoaded: true });
  }

  async function readDetail(run) {
    try {
      return await api.readRun(run);
    } catch (error) {
      if (error.status !== 404 && error.status !== 422) throw error;
      onUnknown(error);
      return null;
    }
  }

  function keepDetail(detail) {
    if (!detail) return;
    const items = store.state.runs.items.map((run) => (run.run === detail.run ? detail : run));
    if (!store.state.detail) refresher.mark("rounds", "cost");
    store.set({ detail, runs: { ...store.state.runs, items } });
  }

  function settled() {
    return store.state.rounds.findLast((round) => FINAL.has(round.state))?.round ?? 0;
  }

  const refresher = createRefresher(
    {
      about: { everyMs: 5000, read: async () => store.set({ about: await api.readAbout() }) },
      runs: { everyMs: 2000, read: readRuns },
      detail: { everyMs: 500, read: ofChosen(readDetail, keepDetail) },
      rounds: {
        everyMs: 500,
        read: ofChosen(
          (run) => api.listRounds(run, settled()),
          (fresh) => {
            const kept = store.state.rounds.filter((round) => !fresh.some((each) => each.round === round.round));
            store.set({ rounds: [...kept, ...fresh].sort((a, b) => a.round - b.round) });
          },
        ),
      },
      cost: { everyMs: 3000, read: ofChosen(api.readCost, (cost) => store.set({ cost })) },
    },
    onError,
  );

  return {
    readRuns,
    /** Read the coordinator's health, which no event tells. */
    readAbout: () => refresher.mark("about"),
    /** Read all again, as after a reset or a lost connection. */
    readAll() {
      refresher.mark("about", "runs", "detail");
      // For a newly chosen run, read the rest once it is known to exist.
      if (store.state.detail) refresher.mark("rounds", "cost");
    },
    /** Read what this event may have changed. */
    follow(event) {
      refresher.mark("runs");
      if (event.run !== store.state.chosen) return;
      refresher.mark("detail", "rounds");
      if (COST_CHANGES.has(event.kind)) refresher.mark("cost");
    },
    /** The next page of older runs. */
    async readMore() {
      const { runs } = store.state;
      const page = await api.listRuns({ ...query(), after: runs.next });
      const known = new Set(runs.items.map((run) => run.run));
      store.set({
        runs: {
          items: [...runs.items, ...page.items.filter((run) => !known.has(run.run))],
          next: page.next,
          total: page.total,
        },
      });
    },
  };
}
