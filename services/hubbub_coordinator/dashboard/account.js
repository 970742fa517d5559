// Sums over a run's rounds, as the page shows them.

const BYTES = 8;

/** Bytes of the ended rounds, FedAvg's for the released ones, and the quotient: of all messages, and of payload. */
export function compareWithFedavg(rounds) {
  const ended = rounds.filter((round) => round.ended_at_s !== null);
  const released = ended.filter((round) => round.state === "released");
  return {
    wire: divide(sumOf(ended, "all_wire_bytes"), sumOf(released, "fedavg_wire_bytes")),
    payload: divide(sum(ended.map(payloadOf)) / BYTES, sumOf(released, "fedavg_bits") / BYTES),
  };
}

function divide(sent, fedavg) {
  return { sent, fedavg, times: sent > 0 && fedavg > 0 ? fedavg / sent : null };
}

/** A field of the rounds, added up. */
export function sumOf(rounds, field) {
  return sum(rounds.map((round) => round[field]));
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
