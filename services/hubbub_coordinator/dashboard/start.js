// Dialog that starts a run. A form writes a request, which whoever has the task completes; experts paste a manifest.

import { byId, h, press, set, setText, show } from "./dom.js";
import { onSubmit, prepareDialog, saveFile } from "./dialogs.js";
import { formatBits, formatBytes, formatTimes, isShare, plural, shortId } from "./format.js";

const NONCE_BYTES = 16;
const SEEDS = 2 ** 32;
const MASK = "shared-mask";
const USUAL = { strategy: "no-union", rounds: 20, local_steps: 100 };
const PLAN_AFTER_MS = 250;

/** The dialog; `onStarted` is given a new run. */
export function mountStart(store, { api, onStarted }) {
  const dialog = byId("start-dialog");
  const field = (name) => byId(`start-${name}`);
  const keyOf = rememberKeys();
  let based = null;
  let request = null;
  let mode = "request";
  let timer = 0;
  prepareDialog(dialog);

  function choose(next) {
    mode = next;
    press(byId("start-mode"), (button) => button.dataset.mode === mode);
    show(field("request"), mode === "request");
    show(field("paste"), mode === "paste");
    show(field("copy"), mode === "request");
    setText(field("submit"), mode === "request" ? "Save the request" : "Start");
    setText(field("error"), "");
  }

  /** Open the form: empty, or with a request for a run like another. */
  async function open(run) {
    based = run;
    setText(field("error"), "");
    request = run ? await api.readRequest(run.run) : requestAnew(store.state.about);
    fillIn(field, store.state, { based, request });
    choose("request");
    write();
    if (!dialog.open) dialog.showModal();
  }

  /** Write the request from the fields, and ask for its plan. */
  function write() {
    const { about } = store.state;
    const { value: strategy } = field("strategy");
    const number = (name) => (field(name).value === "" ? undefined : Number(field(name).value));
    const target = number("target");
    const changed = strategy !== request.options.strategy;
    // These belong to the strategy that they were chosen for; undefined ones are left out.
    const own = changed ? { q: undefined, block: undefined, bits: undefined, weights: undefined, max_samples: undefined } : {};
    const options = {
      ...request.options,
      ...own,
      strategy,
      rounds: number("rounds"),
      local_steps: number("steps"),
      learning_rate: number("rate"),
      target: target === undefined ? undefined : target / unitOf(based?.headline),
    };
    const written = { ...request, task: field("task").value.trim(), options };
    field("written").value = JSON.stringify(withoutNulls(written), null, 1);
    const reveals = about?.strategies.find(({ name }) => name === strategy)?.reveals;
    warn(field("reveals"), reveals && `! More is seen than sums: ${reveals}`);
    clearTimeout(timer);
    timer = setTimeout(() => plan(options), PLAN_AFTER_MS);
  }

  async function plan({ strategy, rho, q, block, wire, rounds }) {
    const parameters = field("parameters").value;
    if (!parameters) {
      warn(field("warning"), "");
      return setText(field("plan"), "With the number of parameters, the plan says what the run costs and who sees what.");
    }
    const query = {
      ...{ strategy, parameters, rho, wire },
      clients: request.clients.length,
      servers: request.aggregators.length,
    };
    try {
      const found = await api.plan(query);
      if (field("strategy").value !== strategy || field("parameters").value !== parameters) return;
      const isOther = (q && q !== found.q) || block > 1;
      showPlan(field("plan"), found, rounds || 1, isOther ? ` This is with q = ${found.q} and single indices.` : "");
      const refused = found.refused ? " Such a run is refused." : "";
      warn(field("warning"), found.warning && `! ${found.warning}.${refused}`);
    } catch (error) {
      setText(field("plan"), `There is no plan: ${error.message}.`);
    }
  }

  byId("start-mode").addEventListener("click", (event) => {
    const wanted = event.target.closest("button")?.dataset.mode;
    if (wanted) choose(wanted);
  });
  field("strategy").addEventListener("change", () => {
    if (based) field("rate").value = chooseRate(based.manifest, field("strategy").value, store.state.about);
  });
  field("task").addEventListener("change", () => {
    const known = store.state.runs.items.find((run) => run.task === field("task").value.trim());
    if (known) field("parameters").value = known.parameters;
  });
  field("request").addEventListener("input", write);
  field("request").addEventListener("change", write);
  field("file").addEventListener("change", async () => {
    const file = field("file").files[0];
    if (file) field("text").value = await file.text();
  });
  field("fresh").addEventListener("click", () => {
    setText(field("error"), "");
    try {
      field("text").value = JSON.stringify(
        { ...JSON.parse(check(field("text").value)), nonce: makeNonce() },
        null,
        2,
      );
    } catch (error) {
      setText(field("error"), error.message);
    }
  });
  field("copy").addEventListener("click", async () => {
    field("written").select();
    await navigator.clipboard?.writeText(field("written").value);
    setText(field("copy"), "Copied");
    setTimeout(() => setText(field("copy"), "Copy"), 2000);
  });
  onSubmit(byId("start-form"), field("error"), async () => {
    if (mode === "request") return saveRequest();
    const manifest = check(field("text").value);
    const run = await api.submit(manifest, keyOf(manifest));
    dialog.close();
    onStarted(run);
  });

  function saveRequest() {
    if (field("task").value.trim() === "") throw new Error("Name the task that is to be trained.");
    saveFile(new Blob([`${field("written").value}\n`], { type: "application/json" }), "request.json");
  }

  return { open };
}

/** A request for everybody in the roster, with a fresh seed. */
function requestAnew(about) {
  const named = (role) => about.parties.filter((party) => party.role === role).map((party) => party.name);
  return {
    format: "hubbub-request-1",
    task: "",
    options: { ...USUAL, seed: Math.floor(Math.random() * SEEDS) },
    clients: named("client"),
    aggregators: named("aggregator"),
    coordinator: about.coordinator,
    roster_sha256: about.roster_sha256,
  };
}

function fillIn(field, { about, runs }, { based, request }) {
  const { options } = request;
  setText(
    field("based-on"),
    `${based ? `Like ${shortId(based.run)}, from another initial model: ` : ""}` +
      `${plural(request.clients.length, "client")}, ${plural(request.aggregators.length, "aggregator")}.`,
  );
  const tasks = [...new Set(runs.items.map((run) => run.task))];
  field("tasks").replaceChildren(...tasks.map((task) => h("option", { value: task })));
  field("task").value = request.task || (tasks.length === 1 ? tasks[0] : "");
  const known = based ?? runs.items.find((run) => run.task === field("task").value);
  field("parameters").value = known?.parameters ?? "";
  field("strategy").replaceChildren(
    ...(about?.strategies ?? []).map(({ name }) => h("option", { value: name }, name)),
  );
  field("strategy").value = options.strategy;
  field("rounds").value = options.rounds;
  field("steps").value = options.local_steps;
  field("rate").value = options.learning_rate ?? "";
  fillInTarget(field, based, options.target);
}

function fillInTarget(field, based, target) {
  const unit = unitOf(based?.headline);
  const [low, high] = based?.headline ? rangeOf(based.manifest.metrics[0]) : [null, null];
  setText(
    field("metric"),
    based?.headline ? `Stop at ${based.headline.name}${unit === 100 ? ", %" : ""}` : "Stop at a score of",
  );
  set(field("target"), { min: low === null ? null : unit * low, max: high === null ? null : unit * high });
  field("target").value = typeof target === "number" ? +(unit * target).toFixed(6) : "";
}

function showPlan(root, plan, rounds, remark) {
  const { wire_bytes: sent, fedavg_wire_bytes: fedavg } = plan;
  const gain = plan.no_gain || (sent < fedavg ? `${formatTimes(fedavg / sent)} less than uncompressed FedAvg` : "");
  root.replaceChildren(
    h(
      "p",
      {},
      h("strong", {}, `About ${formatBytes(rounds * sent)} in all`),
      `, ${formatBytes(sent)} a round, payload ${formatBits(plan.payload_bits)}${gain ? `; ${gain}` : ""}.${remark}`,
    ),
    h(
      "p",
      {},
      "A server learns: ",
      h("strong", {}, plan.servers_learn),
      `. Clients learn the sums, the members and, besides: ${plan.clients_learn}.`,
    ),
  );
}

/** Show a warning, or hide it if there is none. */
function warn(line, text) {
  show(line, Boolean(text));
  setText(line, text || "");
  set(line, { role: text ? "note" : null });
}

function withoutNulls({ options, ...request }) {
  return { ...request, options: Object.fromEntries(Object.entries(options).filter(([, value]) => value !== null)) };
}

/** Divisor of the form's number: an accuracy is given in percent. */
function unitOf(headline) {
  return headline && isShare(headline.name) ? 100 : 1;
}

/** The lowest and the highest value that a metric can have. */
function rangeOf({ kind, low, high }) {
  return { mean: [low, high], r2: [-1, 1], auc: [0, 1] }[kind];
}

/** The run's own ρ if somebody chose it; if it is its strategy's usual one, that of the wanted strategy. */
function chooseRho({ strategy, rho }, wanted, about) {
  const usual = (name) => about?.strategies.find((each) => each.name === name)?.usual_rho;
  return rho === usual(strategy) ? usual(wanted) : rho;
}

/** Factor of the task's own learning rate: the coordinates of a mask are few, and move further. */
function rateFactor(strategy, rho) {
  return strategy === MASK ? 2 / Math.sqrt(rho) : 1;
}

/** The run's learning rate, converted for the wanted strategy; empty if the task has its own, unknown here. */
function chooseRate(manifest, wanted, about) {
  const { strategy, rho, learning_rate: rate } = manifest;
  if (rate === undefined) return "";
  const times = rateFactor(wanted, chooseRho(manifest, wanted, about)) / rateFactor(strategy, rho);
  return times === 1 ? rate : +(rate * times).toPrecision(2);
}

function check(text) {
  if (text.trim() === "") throw new Error("Choose a file or paste the text of a manifest.");
  try {
    JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error.message}`, { cause: error });
  }
  return text;
}

/** A nonce that no run has had. */
function makeNonce() {
  return [...crypto.getRandomValues(new Uint8Array(NONCE_BYTES))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");
}

/** One key for each manifest: sending it again after a lost answer starts nothing twice. */
function rememberKeys() {
  const keys = new Map();
  return (manifest) => {
    if (!keys.has(manifest)) keys.set(manifest, makeNonce());
    return keys.get(manifest);
  };
}
