"""The data owner's policy: limits on the runs that this trainer takes part in, whatever a coordinator asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Self, get_args

from pydantic import Field, field_validator

from hubbub.errors import Code, Objection
from hubbub.ids import Weights
from hubbub.messages.manifest import MAX_MOMENTUM, MINIMUM, Manifest, Momentum, Positive, ScoreMode
from hubbub.parameters import LARGEST_FLOAT32
from hubbub.policy import ANY, NO_LIMIT, Limit, PartyPolicy, object_above, read_list
from hubbub.protocol.masks import DEFAULT_BITS, SPREAD
from hubbub.protocol.metrics import ScoreWeights
from hubbub.protocol.unions import MAX_BLOCK, MAX_Q
from hubbub.strategies.registry import STRATEGIES
from hubbub.strategies.shared_mask import ONE_BIT
from hubbub.strategies.unions import REVEALS
from hubbub.trust.roster import Roster

CAPPED = (
    "local_steps",
    "max_samples",
    "learning_rate",
    "server_momentum",
    "alpha_max",
    "q",
    "kappa",
    "first_factor_bound",
)
"""Fields of a manifest for which the policy has a largest value."""


class Policy(PartyPolicy):
    """Limits that the data owner sets; a manifest within all of them is joined."""

    party: ClassVar[str] = "trainer"

    strategies: tuple[str, ...] = ("no-union", "sec-union", "partial-sec-union")
    """Strategies that this trainer allows. These three show servers nothing of a single client, and clients only
    signs. shared-mask shows servers nothing either, and takes less traffic; clients see sums of changes in a few
    bits. secure-fedavg shows servers nothing either, and clients the mean of the updates as they are, not only
    signs. sum and sparse-sum show clients the sums of your numbers as they are, and servers nothing.
    Every other strategy shows a server something. A strategy is allowed only if it is listed here."""
    max_runs: Limit = 20
    """The most runs that this trainer ever joins: each tells a little more about the data."""
    max_block: Limit = 1
    """The largest block of indices that sec-union may choose together. With 1 you give a sign only where you chose
    to. With more you give one for every index of every block that anybody chose, and where the signs of all
    members agree every client knows yours. Larger blocks take less traffic."""
    min_bits: Annotated[int, Field(ge=1, le=max(SPREAD))] = DEFAULT_BITS
    """The fewest bits in which shared-mask gives the change of a coordinate. With 1, wherever the signs of all
    members agree every client knows yours. With more, that is so only where all give the highest or the lowest
    level."""
    max_local_steps: Limit = 1000
    """The most local steps that a manifest may ask for in a round."""
    max_learning_rate: Positive = 2.0
    """The largest learning rate that a manifest may ask for. The higher the rate, the further a single batch of
    your data moves your update. A task's own rate has no limit here."""
    max_server_momentum: Momentum = 0.9
    """The largest server_momentum that a manifest may ask for. With momentum m a step goes on in later rounds and
    moves the model 1/(1-m) times as far in all, also one that corrupt clients chose."""
    max_alpha_max: Positive = 16.0
    """The largest alpha_max that a manifest may have. It bounds the scaling factor by which one client can move
    the model in a round. For sum and sparse-sum it bounds your numbers."""
    max_q: Annotated[int, Field(ge=1, le=MAX_Q)] = 16
    """The most bits of a mark in sec-union. The union costs that many bits an index, and with more bits a client
    whose own mark comes back is surer that it chose alone."""
    max_runs_per_model: Limit = 1
    """The most runs that this trainer begins from the same model. If two runs begin from one model, in cohorts
    with and without you, the difference of their sums is your update, and that of their scores your score.
    `hubbub ledger allow` allows more from a single model."""
    max_rounds_of_sums: Limit = 1
    """The most rounds of sum and sparse-sum. Your numbers stay the same, so the difference of two sums, one with
    you and one without, is your numbers. Allow more for a task whose numbers depend on the last sum."""
    max_void_rounds_per_model: Annotated[int, Field(ge=0)] = 1
    """The most rounds from the same model, in all runs, that may end void after their union was released, or be
    released without moving the model. With one more, the trainer leaves the run: two sums from one model tell
    something of a client that is in only one of them."""
    max_void_rounds_per_run: Annotated[int, Field(ge=0)] = 3
    """The same, counted over the whole run."""
    max_snapshots_per_peer: Annotated[int, Field(ge=0)] = 3
    """The most times in a run that this trainer sends its model to the same peer that has lost sums, and only once
    after the same round. Beyond that the peer gets no answer from here, and asks other clients."""
    max_kappa: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 10.0
    """The largest kappa that a manifest may have: the members of a round may move the model at most this many
    times further than in earlier rounds. Corrupt clients among them can go to that bound."""
    max_first_factor_bound: Positive = 1.0
    """The largest first_factor_bound that a manifest may have: the same for the first round, in absolute terms."""
    allow_unverified: bool = False
    """Allow manifests without tags (verified = false). Then aggregators can shift a sum as they like, and no
    client notices."""
    scores: tuple[ScoreMode, ...] = ("sum", "none")
    """Scores of the model on your data that may be shared: the sum of all clients' scores, or nothing."""
    score_weights: tuple[ScoreWeights, ...] = ("equal",)
    """Weight of a client in the sum of scores: "equal", or its number of examples ("examples"). The difference of
    two sums weighted by examples, one with you and one without, is your number of examples."""
    weights: tuple[Weights, ...] = ("equal",)
    """Weight of a client's update: "equal", or its number of samples ("samples"), of which the clients learn the
    total. The difference of two runs' totals, one with you and one without, is your number of samples."""
    max_samples: Limit = 1_000_000
    """The largest max_samples that a manifest may have: the most samples that a client counts as. A client that
    lies can make the total as large as if each client had that many, so that yours hardly count."""
    max_scored_rounds: Limit = 200
    """The most rounds of a run in which scores are summed."""
    max_bins: Limit = 256
    """The most bins of the histogram that an AUC is computed from: clients see the sum of all histograms."""
    demo_seed: bool = False
    """Allow secrets from a seed that everybody knows: for tests, never with real data."""

    _read_scores = field_validator("scores", "score_weights", "weights", mode="before")(read_list)

    @classmethod
    def for_demo(cls, roster_sha256: str) -> Self:
        """Return a policy for throw-away data: every strategy, any block or task, two clients, the demo seed."""
        return cls(
            strategies=tuple(STRATEGIES),
            max_block=MAX_BLOCK,
            min_bits=1,
            min_clients=MINIMUM,
            roster_sha256=roster_sha256,
            approve_tasks=(ANY,),
            max_runs=NO_LIMIT,
            max_runs_per_model=NO_LIMIT,
            max_rounds=NO_LIMIT,
            max_void_rounds=NO_LIMIT,
            max_local_steps=NO_LIMIT,
            max_learning_rate=NO_LIMIT,
            max_server_momentum=MAX_MOMENTUM,
            max_alpha_max=LARGEST_FLOAT32,
            max_q=MAX_Q,
            max_rounds_of_sums=NO_LIMIT,
            max_kappa=NO_LIMIT,
            max_first_factor_bound=NO_LIMIT,
            allow_unverified=True,
            score_weights=get_args(ScoreWeights),
            weights=get_args(Weights),
            max_samples=NO_LIMIT,
            max_scored_rounds=NO_LIMIT,
            max_bins=NO_LIMIT,
            demo_seed=True,
        )

    def objections(
        self, manifest: Manifest, *, roster: Roster, runs_before: int, demo_seed: bool = False
    ) -> tuple[Objection, ...]:
        """Return all objections to taking part, each with a remedy.

        `runs_before` counts the runs that this trainer ever joined; `demo_seed` says that its secrets would come
        from the demo's seed. The ledger of models may object later, once the model is known.
        """
        return (
            *super().objections(manifest, roster=roster, runs_before=runs_before),
            *self._object_to_parameters(manifest),
            *self._object_to_unverified(manifest),
            *self._object_to_scores(manifest),
            *self._object_to_sums(manifest),
            *self._object_to_succession(manifest),
            *self._object_to_seed(demo_seed=demo_seed),
        )

    def _object_to_parameters(self, manifest: Manifest) -> Iterator[Objection]:
        if manifest.block > self.max_block:
            yield Objection(
                Code.POLICY_PARAMETERS,
                f"the manifest chooses blocks of {manifest.block} indices, the policy allows {self.max_block}, "
                f"since with blocks every client speaks about all of V and {REVEALS}: ask for a smaller block, or "
                "edit max_block in the policy file",
            )
        if manifest.bits < self.min_bits:
            yield Objection(
                Code.POLICY_PARAMETERS,
                f"the manifest has bits = {manifest.bits}, the policy asks for at least {self.min_bits}, since "
                f"{ONE_BIT}: ask for more bits, or edit min_bits in the policy file",
            )
        if manifest.weights not in self.weights:
            yield Objection(
                Code.POLICY_PARAMETERS,
                f"the manifest weighs updates by {manifest.weights}, the policy allows {', '.join(self.weights)}, "
                "since the totals of runs with and without you subtract to your number of samples: ask for equal "
                "weights, or edit weights in the policy file",
            )
        for field in CAPPED:
            limit = field if field.startswith("max_") else f"max_{field}"
            asked, most = getattr(manifest, field), getattr(self, limit)
            if asked is not None:
                yield from object_above(Code.POLICY_PARAMETERS, field, asked, limit, most)

    def _object_to_unverified(self, manifest: Manifest) -> Iterator[Objection]:
        if not manifest.verified and not self.allow_unverified:
            yield Objection(
                Code.POLICY_PARAMETERS,
                "the manifest has verified = false, so that clients would not notice an aggregator that shifts a "
                "sum: ask for a manifest with verified sums, or edit allow_unverified in the policy file",
            )

    def _object_to_scores(self, manifest: Manifest) -> Iterator[Objection]:
        if not manifest.is_scored:
            return
        if manifest.scores not in self.scores:
            yield Objection(
                Code.POLICY_SCORES,
                f"the manifest says scores = {manifest.scores!r}, the policy allows {', '.join(self.scores)}: ask "
                "for another manifest, or edit scores in the policy file",
            )
        if manifest.score_weights not in self.score_weights:
            yield Objection(
                Code.POLICY_SCORES,
                f"the manifest weighs scores by {manifest.score_weights}, the policy allows "
                f"{', '.join(self.score_weights)}, since sums with and without you subtract to your number of "
                "examples: ask for equal weights, or edit score_weights in the policy file",
            )
        scored = -(-manifest.rounds // manifest.evaluate_every)
        yield from object_above(
            Code.POLICY_SCORES, "scored rounds", scored, "max_scored_rounds", self.max_scored_rounds
        )
        bins = max(claim.bins for claim in manifest.metrics)
        yield from object_above(Code.POLICY_SCORES, "bins of a histogram", bins, "max_bins", self.max_bins)

    def _object_to_sums(self, manifest: Manifest) -> Iterator[Objection]:
        known = STRATEGIES.get(manifest.strategy)
        if known and known.repeats and manifest.rounds > self.max_rounds_of_sums:
            yield Objection(
                Code.POLICY_ROUNDS,
                f"the manifest has {manifest.rounds} rounds of {manifest.strategy}, the policy allows "
                f"{self.max_rounds_of_sums}, since sums of the same numbers over different members subtract to "
                "one client's: ask for fewer, or edit max_rounds_of_sums in the policy file",
            )

    def _object_to_succession(self, manifest: Manifest) -> Iterator[Objection]:
        if manifest.predecessor is None:
            return
        if manifest.predecessor.min_clients < self.min_clients:
            yield Objection(
                Code.POLICY_MIN_CLIENTS,
                f"the run that this one goes on from had a min_clients of {manifest.predecessor.min_clients}, so "
                f"that few organisations endorse its model; the policy asks for at least {self.min_clients}: edit "
                "min_clients in the policy file to allow it",
            )

    def _object_to_seed(self, *, demo_seed: bool) -> Iterator[Objection]:
        if demo_seed and not self.demo_seed:
            yield Objection(
                Code.POLICY_SEED,
                "this trainer is told to take its secrets from the demo's seed, which everybody knows, and the "
                "policy does not accept it: start the trainer without the seed",
            )
