// Lateness of parties: waited for longer than this phase ever took in this run.

const LEAST_S = 5;
const SLACK = 1.5;
const BEFORE_THE_FIRST_S = 60;

/** Waiting time after which a party counts as late. */
export function usualWait(rounds, detail) {
  const open = rounds.at(-1);
  const took = rounds
    .slice(0, -1)
    .flatMap((round) => round.phases)
    .filter((phase) => phase.released_at_s !== null && (!open || phase.name === open.phase))
    .map((phase) => phase.released_at_s - phase.opened_at_s);
  if (took.length === 0) return Math.min(BEFORE_THE_FIRST_S, (detail.manifest.phase_timeout_s ?? Infinity) / 2);
  return Math.max(LEAST_S, SLACK * Math.max(...took));
}

/** Return whether a party needs attention: it is late, missing or failed. */
export function isTrouble(party, usual_s, now_s) {
  return party.state === "missing" || party.state === "failed" || isLate(party, usual_s, now_s);
}

/** Waited for longer than usual. */
export function isLate(party, usual_s, now_s) {
  return party.waited_for && party.since_s !== null && now_s - party.since_s > usual_s;
}
