// Dialog that starts a run: from a manifest, or as a repetition of another run.

import { byId, h, press, set, setText, show } from "./dom.js";
import { onSubmit, prepareDialog } from "./dialogs.js";
import { isShare, shortId } from "./format.js";

const NONCE_BYTES = 16;
const MASK = "shared-mask";

/** The dialog; `onStarted` is given the new run. */
export function mountStart(store, { api, onStarted }) {
  const dialog = byId("start-dialog");
  const field = (name) => byId(`start-${name}`);
  const keyOf = rememberKeys();
  let based = null;
  let mode = "paste";
  prepareDialog(dialog);

  function choose(next) {
    mode = next;
    press(byId("start-mode"), (button) => button.dataset.mode === mode);
    show(field("again"), mode === "again");
    show(field("paste"), mode === "paste");
    setText(field("error"), "");
  }

  function open(run) {
    based = run;
    show(byId("start-mode"), based !== null);
    if (based) fillIn(field, based, store.state.about);
    choose(based ? "again" : "paste");
    dialog.showModal();
  }

  function compose() {
    if (mode === "paste") return check(field("text").value);
    const target = field("target").value;
    const strategy = field("strategy").value;
    const rate = field("rate").value;
    // These belong to the strategy that they were drawn up with; undefined fields are left out.
    const own = strategy === based.manifest.strategy ? based.manifest : {};
    return JSON.stringify({
      ...based.manifest,
      rounds: Number(field("rounds").value),
      strategy,
      rho: chooseRho(based.manifest, strategy, store.state.about),
      block: own.block,
      bits: own.bits,
      learning_rate: rate === "" ? undefined : Number(rate),
      weights: own.weights,
      max_samples: own.max_samples,
      target: target === "" ? null : Number(target) / unitOf(based.headline),
      nonce: field("nonce").textContent,
    });
  }

  byId("start-mode").addEventListener("click", (event) => {
    const wanted = event.target.closest("button")?.dataset.mode;
    if (wanted) choose(wanted);
  });
  field("strategy").addEventListener("change", () => {
    field("rate").value = chooseRate(based.manifest, field("strategy").value, store.state.about);
    warnOfReveals(field, store.state.about);
    warnOfRate(field, based.manifest, store.state.about);
  });
  field("rate").addEventListener("input", () => warnOfRate(field, based.manifest, store.state.about));
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
  onSubmit(byId("start-form"), field("error"), async () => {
    const manifest = compose();
    const run = await api.submit(manifest, keyOf(manifest));
    dialog.close();
    onStarted(run);
  });
  return { open };
}

/** Divisor of the form's number: an accuracy is given in percent. */
function unitOf(headline) {
  return headline && isShare(headline.name) ? 100 : 1;
}

function fillInTarget(field, { headline, manifest }) {
  show(field("stop"), headline !== null);
  const unit = unitOf(headline);
  const [low, high] = headline ? rangeOf(manifest.metrics[0]) : [0, 1];
  setText(field("metric"), `Stop at ${headline?.name}${unit === 100 ? ", %" : ""}`);
  set(field("target"), { min: unit * low, max: unit * high });
  field("target").value = typeof manifest.target === "number" ? +(unit * manifest.target).toFixed(6) : "";
}

/** The lowest and the highest value that a metric can have. */
function rangeOf({ kind, low, high }) {
  return { mean: [low, high], r2: [-1, 1], auc: [0, 1] }[kind];
}

function fillIn(field, { run, headline, manifest }, about) {
  setText(
    field("based-on"),
    `Like ${shortId(run)}: ${manifest.task}, ${manifest.cohort.length} clients, ` +
      `${manifest.aggregators.length} aggregators.`,
  );
  field("rounds").value = manifest.rounds;
  fillInTarget(field, { headline, manifest });
  field("strategy").replaceChildren(
    ...(about?.strategies ?? []).map(({ name }) => h("option", { value: name }, name)),
  );
  field("strategy").value = manifest.strategy;
  field("rate").value = chooseRate(manifest, manifest.strategy, about);
  setText(field("nonce"), makeNonce());
  warnOfReveals(field, about);
  warnOfRate(field, manifest, about);
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

function warnOfRate(field, manifest, about) {
  const strategy = field("strategy").value;
  const times = rateFactor(strategy, chooseRho(manifest, strategy, about));
  const isSlow = times > 1 && field("rate").value === "";
  show(field("slow"), isSlow);
  const higher =
    `! ${strategy} needs a higher learning rate than the task's own: ` +
    `about ${times.toFixed(0)} times as much.`;
  setText(field("slow"), isSlow ? higher : "");
}

function warnOfReveals(field, about) {
  const strategy = about?.strategies.find(({ name }) => name === field("strategy").value);
  const line = field("reveals");
  show(line, Boolean(strategy?.reveals));
  setText(line, `! More is seen than sums: ${strategy?.reveals}`);
  set(line, { role: strategy?.reveals ? "note" : null });
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
