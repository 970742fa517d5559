// The live event stream: a fetch that stays open, and reconnects after the last event.

import { PATHS, Problem } from "./api.js";
import { createEventReader } from "./event_text.js";

const BACKOFF_S = [1, 2, 4, 8, 15, 30];
// The coordinator sends a keep-alive every 15 s; after three times that long the connection is dead.
const SILENCE_MS = 45_000;
const REFUSED = new Set([401, 403]);

/** A stream of all events. `onState` gets connecting, live, waiting (and until when) and stopped. */
export function createStream(api, { onEvent, onReset, onState, onRefused }) {
  let lastId = "";
  let controller = null;
  let wake = () => {};
  let tries = 0;

  async function readOnce(signal) {
    const answer = await api.request(PATHS.stream, {
      headers: { Accept: "text/event-stream", ...(lastId ? { "Last-Event-ID": lastId } : {}) },
      signal,
    });
    tries = 0;
    onState({ name: "live" });
    await pump(answer.body, signal, (event) => {
      if (event.id) lastId = event.id;
      try {
        if (event.kind === "reset") onReset();
        else onEvent(JSON.parse(event.data));
      } catch (error) {
        // A bug of ours is no reason to disconnect: the browser's console has it.
        reportError(error);
      }
    });
  }

  async function keepReading(mine) {
    while (!mine.signal.aborted) {
      onState({ name: "connecting" });
      try {
        await readOnce(mine.signal);
      } catch (error) {
        if (mine.signal.aborted) return;
        if (error instanceof Problem && REFUSED.has(error.status)) return void onRefused(error);
      }
      if (!mine.signal.aborted) await waitBeforeNextTry(mine.signal);
    }
  }

  async function waitBeforeNextTry(signal) {
    const seconds = BACKOFF_S[Math.min(tries, BACKOFF_S.length - 1)] * (0.8 + 0.4 * Math.random());
    tries += 1;
    onState({ name: "waiting", untilMs: Date.now() + 1000 * seconds });
    await new Promise((resolve) => {
      wake = resolve;
      setTimeout(resolve, 1000 * seconds);
      signal.addEventListener("abort", resolve, { once: true });
    });
  }

  addEventListener("online", () => wake());

  return {
    /** Follow all events after this one. */
    start(afterId) {
      controller?.abort();
      controller = new AbortController();
      lastId = afterId;
      tries = 0;
      keepReading(controller);
    },
    /** Disconnect. */
    stop() {
      controller?.abort();
      onState({ name: "stopped" });
    },
    /** Try again at once. */
    retry: () => wake(),
  };
}

/** Read a body to its end, and give up on one that has gone silent. */
async function pump(body, signal, onEvent) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const feed = createEventReader(onEvent);
  const hangUp = () => void reader.cancel().catch(() => {});
  signal.addEventListener("abort", hangUp, { once: true });
  let timer = setTimeout(hangUp, SILENCE_MS);
  try {
    for (;;) {
      const { done, value } = await reader.read();
      clearTimeout(timer);
      if (done) return;
      timer = setTimeout(hangUp, SILENCE_MS);
      feed(decoder.decode(value, { stream: true }));
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", hangUp);
  }
}
