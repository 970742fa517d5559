// Client of the coordinator's REST API. Every path that the page uses is in PATHS.

import { readToken } from "./session.js";

export const PATHS = {
  about: "/api/v1/about",
  machines: "/api/v1/machines",
  runs: "/api/v1/runs",
  run: "/api/v1/runs/{run}",
  pause: "/api/v1/runs/{run}/pause",
  resume: "/api/v1/runs/{run}/resume",
  cancel: "/api/v1/runs/{run}/cancel",
  rounds: "/api/v1/runs/{run}/rounds",
  plan: "/api/v1/plan",
  request: "/api/v1/runs/{run}/request",
  label: "/api/v1/runs/{run}/label",
  cost: "/api/v1/runs/{run}/cost",
  export: "/api/v1/runs/{run}/export",
  events: "/api/v1/events",
  stream: "/api/v1/events/stream",
};

/** Error with the coordinator's own message; status 0 means that it was not reached. */
export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.name = "Problem";
    this.status = status;
  }
}

/** Build a URL: the run goes into the path or the query; an array repeats its name. */
function makeUrl(path, { run = "", ...query } = {}) {
  const parameters = new URLSearchParams(path.includes("{run}") || !run ? {} : { run });
  for (const [name, value] of Object.entries(query)) {
    for (const each of [value].flat())
      if (each !== undefined && each !== null && each !== "") parameters.append(name, each);
  }
  const text = parameters.toString();
  return path.replace("{run}", encodeURIComponent(run)) + (text ? `?${text}` : "");
}

/** The calls of the page, and the coordinator's clock as far as its answers tell it. */
export function createApi() {
  let skewMs = 0;

  function noteClock(answer) {
    const date = Date.parse(answer.headers.get("date") ?? "");
    // The header has whole seconds: half a second is the best guess of the rest.
    if (Number.isFinite(date)) skewMs = Math.abs(date + 500 - Date.now()) < 2000 ? 0 : date + 500 - Date.now();
  }

  async function request(url, { method = "GET", headers = {}, body, signal } = {}) {
    let answer;
    try {
      answer = await fetch(url, {
        method,
        body,
        signal,
        headers: { Authorization: `Bearer ${readToken()}`, ...headers },
        cache: "no-store",
        credentials: "omit",
        redirect: "error",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem(0, "the coordinator cannot be reached");
    }
    noteClock(answer);
    if (!answer.ok) throw await readProblem(answer);
    return answer;
  }

  const read = async (path, query) => (await request(makeUrl(path, query))).json();
  const post = async (path, run) => (await request(makeUrl(path, { run }), { method: "POST" })).json();

  return {
    request,
    nowS: () => (Date.now() + skewMs) / 1000,
    readAbout: () => read(PATHS.about),
    readMachines: () => read(PATHS.machines),
    listRuns: (query) => read(PATHS.runs, query),
    readRun: (run) => read(PATHS.run, { run }),
    // The page shows only the totals, so any page of rounds will do.
    readCost: (run) => read(PATHS.cost, { run, limit: 1 }),
    listRounds: (run, after) => readAllRounds(read, run, after),
    listEvents: (query) => read(PATHS.events, query),
    pause: (run) => post(PATHS.pause, run),
    resume: (run) => post(PATHS.resume, run),
    cancel: (run) => post(PATHS.cancel, run),
    plan: (query) => read(PATHS.plan, query),
    readRequest: (run) => read(PATHS.request, { run }),
    putLabel: async (run, label) =>
      (
        await request(makeUrl(PATHS.label, { run }), {
          method: "PUT",
          body: JSON.stringify(label),
          headers: { "Content-Type": "application/json" },
        })
      ).json(),
    submit: async (text, key) =>
      (
        await request(PATHS.runs, {
          method: "POST",
          body: text,
          headers: { "Content-Type": "application/json", "Idempotency-Key": key },
        })
      ).json(),
    export: (run, query) => request(makeUrl(PATHS.export, { run, ...query })),
  };
}

async function readAllRounds(read, run, after) {
  const found = [];
  for (let cursor = after; cursor !== null;) {
    const page = await read(PATHS.rounds, { run, after: cursor, limit: 500 });
    found.push(...page.items);
    cursor = page.next;
  }
  return found;
}

async function readProblem(answer) {
  const document = await answer.json().catch(() => ({}));
  return new Problem(
    answer.status,
    document.detail || document.title || `the coordinator answered ${answer.status}`,
  );
}
