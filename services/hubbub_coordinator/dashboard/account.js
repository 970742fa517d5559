// Sums over a run's rounds, as the page shows them.

/** What the ended rounds sent, what dense FedAvg would have sent for the released ones, and the quotient. */
export function compareWithDense(rounds) {
  const ended = rounds.filter((round) => round.ended_at_s !== null);
  const sent = sum(ended.map(payloadOf));
  const dense = sum(ended.filter((round) => round.state === "released").map((round) => round.fedavg_bits));
  return { sent, dense, times: sent > 0 && dense > 0 ? dense / sent : null };
}

/** Payload bits of a round, whatever they count as. */
export function payloadOf(round) {
  return sum(Object.values(round.cost).map((cost) => cost.payload_bits));
}

/** What the formula of the run's wire mode says of a round. */
export function predictedOf(round) {
  return sum(Object.values(round.cost).map((cost) => cost.predicted_bits));
}

/** The rounds that have a value of this metric, newest last. */
export function measured(rounds, name) {
  return rounds.filter((round) => Object.hasOwn(round.metrics, name));
}

/** What counts as what, over all rounds, in the order in which it came. */
export function kindsOf(rounds) {
  return [...new Set(rounds.flatMap((round) => Object.keys(round.cost)))];
}

/** Numbers added up. */
export function sum(numbers) {
  return numbers.reduce((total, number) => total + number, 0);
}
