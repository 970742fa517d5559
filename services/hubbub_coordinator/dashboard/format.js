// Formats numbers, times and sizes. KB, MB and GB are powers of 1024, as in the paper.

const UNITS = ["B", "KB", "MB", "GB", "TB"];
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", {
  day: "numeric",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
});
const COUNT = new Intl.NumberFormat("en-GB");
export const NOTHING = "–";

/** 61706 as 61,706. */
export function formatCount(value) {
  return value === null || value === undefined ? NOTHING : COUNT.format(value);
}

/** Bytes with three or four digits: 602.7 KB. */
export function formatBytes(bytes) {
  if (bytes === null || bytes === undefined) return NOTHING;
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 ? 0 : value < 100 ? 2 : 1;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** Payload is counted in bits and read in bytes. */
export function formatBits(bits) {
  return bits === null || bits === undefined ? NOTHING : formatBytes(bits / 8);
}

/** 0.9415 as 94.15 %. */
export function formatPercent(value, digits = 2) {
  return value === null || value === undefined ? NOTHING : `${(100 * value).toFixed(digits)} %`;
}

/** A metric's value: an accuracy as a percentage, anything else to four digits. */
export function formatMetric(name, value, digits = 2) {
  if (value === null || value === undefined) return NOTHING;
  return isShare(name) ? formatPercent(value, digits) : String(+value.toPrecision(4));
}

/** Return whether a metric is shown in percent. */
export function isShare(name) {
  return name === "accuracy";
}

/** A metric's name where a label stands. */
export function labelMetric(name) {
  return isShare(name) ? "Accuracy" : name;
}

/** A factor: 4.0 ×, 318 ×. */
export function formatTimes(value) {
  if (!Number.isFinite(value)) return NOTHING;
  return `${value < 100 ? value.toFixed(1) : COUNT.format(Math.round(value))} ×`;
}

/** A stretch of time: 240 ms, 4.2 s, 2 min 10 s, 3 h 5 min, 2 d 4 h. */
export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  const whole = Math.round(seconds);
  if (seconds < 1) return `${Math.max(0, Math.round(1000 * seconds))} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** The same in whole seconds, for running timers. */
export function formatElapsed(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  return whole < 10 ? `${whole} s` : formatDuration(whole);
}

/** Age in one unit. */
export function formatAge(seconds) {
  if (seconds < 5) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

/** The same as a time in the past. */
export function formatAgo(seconds) {
  const age = formatAge(seconds);
  return age === "now" ? age : `${age} ago`;
}

/** The time of day. */
export function formatClock(at_s) {
  return CLOCK.format(new Date(1000 * at_s));
}

/** The day and the time. */
export function formatDay(at_s) {
  return DAY.format(new Date(1000 * at_s));
}

/** A run's id, cut to what tells it from others. */
export function shortId(run) {
  return run.slice(0, 10);
}

/** A run's name, or what it is. */
export function nameRun({ name, task, strategy }) {
  return name || `${task} · ${strategy}`;
}

/** One thing or several. */
export function plural(count, one, many = `${one}s`) {
  return `${formatCount(count)} ${count === 1 ? one : many}`;
}

/** Names in a sentence; of many, the first few and how many more. */
export function listNames(names, most = 4) {
  if (names.length === 0) return "nobody";
  const said = names.slice(0, most);
  const rest = names.length - said.length;
  if (rest > 0) return `${said.join(", ")} and ${plural(rest, "other")}`;
  return said.length === 1 ? said[0] : `${said.slice(0, -1).join(", ")} and ${said.at(-1)}`;
}
