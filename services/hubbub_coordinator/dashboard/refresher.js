// Rate limit of reads: reads a view again soon after it changed, but never more often than its limit.

/** Jobs by name, `{ everyMs, read }`. `mark(name)` schedules one; a job never runs twice at a time. */
export function createRefresher(jobs, onError) {
  const progress = new Map(
    Object.keys(jobs).map((name) => [name, { due: false, busy: false, endedMs: -Infinity, timer: 0 }]),
  );

  function plan(name) {
    const job = progress.get(name);
    if (!job.due || job.busy || job.timer) return;
    const wait = Math.max(0, job.endedMs + jobs[name].everyMs - performance.now());
    job.timer = setTimeout(() => run(name), wait);
  }

  async function run(name) {
    const job = progress.get(name);
    Object.assign(job, { due: false, busy: true, timer: 0 });
    try {
      await jobs[name].read();
    } catch (error) {
      onError(error);
    }
    Object.assign(job, { busy: false, endedMs: performance.now() });
    plan(name);
  }

  return {
    mark(...names) {
      for (const name of names) {
        progress.get(name).due = true;
        plan(name);
      }
    },
  };
}
