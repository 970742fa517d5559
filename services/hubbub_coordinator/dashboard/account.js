// Sums over a run's rounds, as the page shows them.

/** Return the ended rounds' payload, dense FedAvg's for the released ones, and the quotient. */
export function compareWithDense(rounds) {
  const ended = rounds.filter((round) => round.ended_at_s !== null);
  const sent = sum(ended.map(payloadOf));
  const dense = sum(ended.filter((round) => round.state === "released").map((round) => round.fedavg_bits));
  return { sent, dense, times: sent > 0 && dense > 0 ? dense / sent : null };
}

/** Payload bits of a round, over all categories. */
export function payloadOf(round) {
  return sum(Object.values(round.cost).map((cost) => cost.payload_bits));
}

/** Payload bits of a round by the formula of the run's wire mode. */
export function predictedOf(round) {
  return sum(Object.values(round.cost).map((cost) => cost.predicted_bits));
}

/** The rounds that have a value of this metric, newest last. */
export function measured(rounds, name) {
  return rounds.filter((round) => Object.hasOwn(round.metrics, name));
}

/** Categories of traffic over all rounds, in the order of their first appearance. */
export function kindsOf(rounds) {
  return [...new Set(rounds.flatMap((round) => Object.keys(round.cost)))];
}

/** Numbers added up. */
export function sum(numbers) {
  return numbers.reduce((total, number) => total + number, 0);
}
