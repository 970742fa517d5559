// The page's state, and its listeners.

/** A store: `set` takes a patch, and each listener is called once per batch if one of its keys changed. */
export function createStore(initial) {
  const state = { ...initial };
  const listeners = new Set();
  const changed = new Set();

  function flush() {
    const keys = new Set(changed);
    changed.clear();
    for (const { wanted, react } of listeners) if (wanted.some((key) => keys.has(key))) react(state);
  }

  return {
    state,
    set(patch) {
      if (changed.size === 0) queueMicrotask(flush);
      for (const [key, value] of Object.entries(patch)) {
        if (state[key] === value) continue;
        state[key] = value;
        changed.add(key);
      }
    },
    on(wanted, react) {
      listeners.add({ wanted, react });
      react(state);
    },
  };
}
