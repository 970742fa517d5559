// The chosen run's manifest, as a list of facts.

import { byId, h } from "./dom.js";
import { formatCount } from "./format.js";

const LONG = new Set(["initial_model_sha256", "roster_sha256", "nonce"]);

/** Show the chosen run's manifest. */
export function mountManifest(store) {
  let shown = "";
  store.on(["detail"], ({ detail }) => {
    if (!detail || detail.run === shown) return;
    shown = detail.run;
    const { cohort, aggregators, ...rest } = detail.manifest;
    const organisations = new Set(cohort.map((member) => member.organisation));
    const facts = [
      ["run", detail.run],
      ["cohort", `${cohort.length} clients of ${organisations.size} organisations`],
      ["aggregators", aggregators.join(", ")],
      ...Object.entries(rest).map(([name, value]) => [name, say(value)]),
    ];
    byId("manifest").replaceChildren(
      ...facts.map(([name, value]) =>
        h(
          "div",
          { class: LONG.has(name) || name === "run" ? "long" : null },
          h("dt", {}, name.replaceAll("_", " ")),
          h("dd", {}, value),
        ),
      ),
    );
  });
}

function say(value) {
  if (value === null) return "none";
  if (Array.isArray(value)) return value.map((each) => each.name ?? say(each)).join(", ");
  return typeof value === "number" && Number.isInteger(value) ? formatCount(value) : String(value);
}
