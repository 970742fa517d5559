// The dashboard's entry point: builds the parts of the page and connects them.

import { createAnnouncer } from "./announcer.js";
import { createApi } from "./api.js";
import { mountCharts } from "./charts.js";
import { mountConnection } from "./connection.js";
import { mountCosts } from "./costs.js";
import { byId, setText, show } from "./dom.js";
import { mountHeadline } from "./headline.js";
import { mountHeatMap } from "./heat_map.js";
import { mountLog } from "./log.js";
import { mountMachine } from "./machine.js";
import { mountManifest } from "./manifest.js";
import { mountNotifier } from "./notifier.js";
import { mountOverlay } from "./overlay.js";
import { mountPicture } from "./picture.js";
import { createReading, NO_RUNS } from "./reading.js";
import { mountRefusals, REFUSALS } from "./refusals.js";
import { ACTIVE, mountRuns } from "./runs.js";
import { readToken } from "./session.js";
import { mountShortcuts } from "./shortcuts.js";
import { mountStart } from "./start.js";
import { mountSteering } from "./steering.js";
import { createStore } from "./store.js";
import { createStream } from "./stream.js";
import { mountTheme } from "./theme.js";
import { mountToken } from "./token.js";

const NARROW = "(max-width: 859px)";
const LOG_PAGE = 1000;
const RETRY_MS = 3000;
const ABOUT_EVERY_S = 15;
const SAID_ELSEWHERE = new Set([0, 401, 404, 422, 502, 503, 504]);

/** Build the page; nothing outside keeps a reference to it. */
function main() {
  const store = createStore({
    about: null,
    machines: null,
    machine: "round",
    theme: "light",
    runs: NO_RUNS,
    runsLoaded: false,
    filter: "all",
    chosen: "",
    unknown: "",
    detail: null,
    rounds: [],
    overlay: null,
    cost: null,
    connection: { name: "stopped" },
    liveUntilMs: 0,
    tick: 0,
  });
  const api = createApi();
  const { nowS } = api;
  const announcer = createAnnouncer();
  const { announce, complain } = announcer;
  let nextTry = 0;
  const theme = mountTheme(store);
  const log = mountLog(store);
  const picture = mountPicture(store, { nowS });
  mountHeadline(store, { nowS });
  mountHeatMap(store);
  mountMachine(store);
  mountCharts(store);
  mountOverlay(store, { api, complain });
  const refusals = mountRefusals();
  const notifier = mountNotifier(store, { nowS, complain });
  mountCosts(store);
  mountManifest(store);

  const reading = createReading(store, {
    api,
    onError: onReadError,
    onUnknown: (error) => store.set({ unknown: error.message }),
  });
  const stream = createStream(api, {
    onEvent(event) {
      reading.follow(event);
      log.add([event]);
      picture.play(event);
      notifier.follow(event);
      if (event.run !== store.state.chosen) return;
      refusals.add(event);
      announcer.announceEvent(event);
    },
    onReset: readAgain,
    onState: onConnection,
    onRefused: lock,
  });
  const token = mountToken({ onToken: enter, onForgotten: () => lock() });
  const start = mountStart(store, {
    api,
    onStarted: (run) => {
      reading.readAll();
      goTo(run.run);
    },
  });
  mountSteering(store, { api, onProblem: complain, onAgain: start.open, onChanged: () => reading.readAll() });
  mountConnection(store, { announce, onRetry: () => (store.state.about ? stream.retry() : begin()) });
  mountRuns(store, {
    nowS,
    onFilter(filter) {
      store.set({ filter, runs: NO_RUNS, runsLoaded: false });
      reading.readRuns().catch(complain);
    },
    onMore: () => reading.readMore().catch(complain),
  });
  mountShortcuts([
    { key: "n", says: "start a run", act: () => store.state.about?.may_change && start.open(null) },
    {
      key: "r",
      says: "go to the list of runs",
      act: () => byId("runs-list").querySelector("a:not([tabindex])")?.focus(),
    },
    { key: "/", says: "filter the events", act: () => byId("log-text").focus() },
    { key: "t", says: "light or dark", act: theme.toggle },
  ]);
  byId("open-start").addEventListener("click", () => start.open(null));
  byId("start-first").addEventListener("click", () => start.open(null));
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
  addEventListener("hashchange", followAddress);
  setInterval(() => {
    store.set({ tick: store.state.tick + 1 });
    if (store.state.connection.name === "live" && store.state.tick % ABOUT_EVERY_S === 0) reading.readAbout();
  }, 1000);
  store.on(["about", "connection", "runs", "runsLoaded", "chosen", "detail", "unknown", "filter"], showPage);
  begin();

  /** Log in with the token of this tab, or ask for one. */
  async function begin() {
    clearTimeout(nextTry);
    if (!readToken()) return void lock();
    store.set({ connection: { name: "connecting" } });
    try {
      await enter();
    } catch (error) {
      if (error.status === 401 || error.status === 403) return void lock(error);
      store.set({ connection: { name: "waiting", untilMs: Date.now() + RETRY_MS } });
      nextTry = setTimeout(begin, RETRY_MS);
    }
  }

  /** Read everything once, then follow the event stream from there, so that no event is missed. */
  async function enter() {
    clearTimeout(nextTry);
    const about = await api.readAbout();
    const newest = (await api.listEvents({ limit: 1 })).items.at(-1)?.id ?? 0;
    store.set({ about, machines: await api.readMachines(), liveUntilMs: 0 });
    await reading.readRuns();
    followAddress();
    stream.start(String(newest));
  }

  function lock(error) {
    stream.stop();
    store.set({ about: null, runs: NO_RUNS, runsLoaded: false, detail: null, rounds: [], cost: null });
    token.open(error ? `The coordinator refuses this token: ${error.message}.` : "");
  }

  function onConnection(connection) {
    const before = store.state.connection.name;
    if (before === "live") store.set({ liveUntilMs: Date.now() });
    store.set({ connection });
    if (connection.name === "live" && store.state.liveUntilMs > 0) reading.readAll();
  }

  function onReadError(error) {
    // The header shows a lost connection already, and the run's place an unknown run.
    if (!SAID_ELSEWHERE.has(error.status)) complain(error);
  }

  function readAgain() {
    reading.readAll();
    if (store.state.chosen) readLog(store.state.chosen);
  }

  async function readLog(run) {
    try {
      const [all, refused] = await Promise.all([
        api.listEvents({ run, limit: LOG_PAGE }),
        api.listEvents({ run, limit: LOG_PAGE, kind: REFUSALS }),
      ]);
      if (store.state.chosen !== run) return;
      log.fill(all.items);
      refusals.fill(refused.items);
    } catch (error) {
      onReadError(error);
    }
  }

  function goTo(run) {
    location.hash = `#/runs/${run}`;
  }

  /** Choose the run from the address; without one, a wide page takes the most likely run. */
  function followAddress() {
    const named = /^#\/runs\/([0-9A-Za-z_-]{1,128})$/.exec(location.hash)?.[1] ?? "";
    const { items } = store.state.runs;
    const likely = items.find((run) => ACTIVE.includes(run.state)) ?? items[0];
    if (!named && likely && !matchMedia(NARROW).matches) return void location.replace(`#/runs/${likely.run}`);
    if (named === store.state.chosen && store.state.detail) return;
    log.clear();
    refusals.clear();
    store.set({ chosen: named, unknown: "", detail: null, rounds: [], cost: null });
    if (!named || !readToken()) return;
    reading.readAll();
    readLog(named);
  }
}

/** Show the main parts of the page that apply. */
function showPage({ about, connection, runs, runsLoaded, chosen, detail, unknown, filter }) {
  const nothing = runsLoaded && runs.total === 0 && filter === "all";
  document.documentElement.dataset.view = chosen ? "run" : "list";
  const awaited = detail === null && unknown === "" && (chosen !== "" || (!runsLoaded && filter === "all"));
  const isLoading = about === null ? connection.name !== "stopped" : awaited;
  show(byId("blank-loading"), isLoading);
  show(byId("blank-locked"), about === null && !isLoading);
  show(byId("blank-empty"), about !== null && nothing && !chosen);
  show(byId("blank-unchosen"), about !== null && runsLoaded && !nothing && !chosen);
  show(byId("blank-unknown"), about !== null && unknown !== "");
  setText(byId("blank-unknown-detail"), unknown);
  show(byId("run"), about !== null && detail !== null);
  for (const id of ["open-start", "start-first"]) {
    const button = byId(id);
    button.disabled = !about?.may_change;
    button.title = about && !about.may_change ? "This token may only read; the change token starts runs" : "";
  }
  document.title = detail ? `${detail.state} · ${detail.task} · Hubbub` : "Hubbub";
}

main();
