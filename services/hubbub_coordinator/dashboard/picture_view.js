// Status of each party in the picture.

import { formatElapsed } from "./format.js";
import { isLate, isTrouble, usualWait } from "./lateness.js";

const WORDS = {
  asked: "asked to join",
  joined: "joined",
  training: "training",
  sending: "sending",
  delivered: "delivered",
  adding: "adding up",
  released: "sum released",
  applied: "applied",
  "left-out": "left out",
  missing: "missing",
  failed: "failed",
  idle: "idle",
};
const MARKS = { missing: "!", failed: "×", "left-out": "–", applied: "✓", released: "✓" };

/** Each party with its status in the picture. */
export function viewParties(detail, rounds, now_s) {
  const round = rounds.at(-1);
  const phase = round?.phases.findLast((each) => each.state !== "void") ?? round?.phases.at(-1);
  const usual_s = usualWait(rounds, detail);
  const delivered = phase?.delivered ?? {};
  return new Map(
    detail.participants.map((party) => {
      const late = isLate(party, usual_s, now_s);
      const waited = party.waited_for && party.since_s !== null ? formatElapsed(now_s - party.since_s) : "";
      return [
        party.name,
        {
          ...party,
          late,
          waited,
          trouble: isTrouble(party, usual_s, now_s),
          word: late ? `late, ${waited}` : (WORDS[party.state] ?? party.state),
          mark: late ? "!" : (MARKS[party.state] ?? ""),
          shares: delivered[party.name] ?? [],
          held: Object.values(delivered).filter((servers) => servers.includes(party.name)).length,
          says: sayParty(party, late, waited),
        },
      ];
    }),
  );
}

function sayParty(party, late, waited) {
  const owner = party.organisation && party.organisation !== party.name ? ` of ${party.organisation}` : "";
  const waits = waited ? `. ${late ? "Late: " : ""}${waited} of waiting so far` : "";
  return `${party.name}, ${party.role}${owner}: ${party.status || WORDS[party.state] || party.state}${waits}.`;
}
