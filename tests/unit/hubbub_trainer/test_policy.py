"""The data owner's policy: what a trainer refuses, and how the operator learns why."""

from __future__ import annotations

from pathlib import Path

import pytest

from hubbub.errors import ConfigurationError
from hubbub.ids import Role
from hubbub.messages.manifest import OWN_MODELS, TAKES_NUMBERS, CohortMember, Manifest, MetricClaim
from hubbub.protocol.metrics import BINARY
from hubbub.strategies.registry import STRATEGIES
from hubbub.trust.identity import Identity, new_identity
from hubbub.trust.roster import Roster, build_roster
from hubbub.trust.succession import endorse, gather
from hubbub_trainer.policy import Policy
from support.builders import aggregator_names, client_names, make_cohort, make_manifest

OTHER = "f" * 64
PRIVATE = ("no-union", "sec-union", "partial-sec-union")
SCORED = tuple(MetricClaim.of(metric) for metric in BINARY)
SUMS = [name for name, strategy in STRATEGIES.items() if strategy.repeats]
REVEALING = [name for name, strategy in STRATEGIES.items() if strategy.reveals]


def make_identities() -> dict[str, Identity]:
    """Four clients, three aggregators, each its own organisation; a second aggregator of the first operator."""
    parties = [
        *((member.name, Role.CLIENT, member.organisation) for member in make_cohort(client_names(4))),
        *((name, Role.AGGREGATOR, f"operator-{number}") for number, name in enumerate(aggregator_names(3), 1)),
        ("aggregator-twin", Role.AGGREGATOR, "operator-1"),
        ("coordinator", Role.COORDINATOR, "hub"),
        ("second-coordinator", Role.COORDINATOR, "hub"),
    ]
    return {party[0]: new_identity(*party) for party in parties}


def make_roster(identities: dict[str, Identity]) -> Roster:
    return build_roster([identity.public() for identity in identities.values()])


IDENTITIES = make_identities()
ROSTER = make_roster(IDENTITIES)


def make_policy(**overrides: object) -> Policy:
    fields = {"roster_sha256": ROSTER.digest, "approve_tasks": ("synthetic",), **overrides}
    return Policy.model_validate(fields)


def propose(**overrides: object) -> Manifest:
    """A manifest that `make_policy()` has nothing against."""
    return make_manifest(clients=4, servers=3, **{"roster_sha256": ROSTER.digest, **overrides})


def judge(
    policy: Policy, manifest: Manifest, *, roster: Roster = ROSTER, runs_before: int = 0, demo_seed: bool = False
) -> tuple[str, ...]:
    found = policy.objections(manifest, roster=roster, runs_before=runs_before, demo_seed=demo_seed)
    return tuple(map(str, found))


def test_a_manifest_at_every_limit_is_joined() -> None:
    policy = make_policy(
        min_clients=3, min_servers=3, coordinators=("coordinator",), max_runs=5, max_rounds=7, demo_seed=True
    )

    assert judge(policy, propose(min_clients=3, rounds=7), runs_before=4, demo_seed=True) == ()


def member(name: str, organisation: str) -> CohortMember:
    return CohortMember.model_validate({"name": name, "organisation": organisation})


THREE = make_cohort(client_names(3))
ONE_OPERATOR = ("aggregator-1", "aggregator-twin")
WEIGHTED = {"metrics": SCORED, "score_weights": "examples"}


@pytest.mark.parametrize(
    ("limits", "proposed", "said"),
    [
        ({}, {"min_clients": 2}, "min_clients is 2 ... at least 3 ... edit min_clients"),
        ({"scores": ("none",)}, {"metrics": SCORED}, "scores = 'sum' ... allows none ... edit scores"),
        ({}, WEIGHTED, "by examples ... allows equal ... edit score_weights"),
        ({}, {"weights": "samples"}, "weighs updates by samples ... allows equal ... edit weights"),
        (
            {"weights": ("equal", "samples"), "max_samples": 9},
            {"weights": "samples", "max_samples": 10},
            "max_samples = 10 ... at most 9 ... edit max_samples",
        ),
        (
            {"max_scored_rounds": 1},
            {"metrics": SCORED},
            "scored rounds = 2 ... at most 1 ... edit max_scored_rounds",
        ),
        ({"max_bins": 63}, {"metrics": SCORED}, "bins of a histogram = 64 ... at most 63 ... edit max_bins"),
        (
            {"min_servers": 3},
            {"aggregators": aggregator_names(2)},
            "has 2 aggregators ... at least 3 ... edit min_servers",
        ),
        (
            {},
            {"aggregators": ONE_OPERATOR},
            "2 aggregators are run by operator-1 ... at least 2 organisations ... edit min_servers",
        ),
        (
            {"min_servers": 3},
            {"aggregators": (*ONE_OPERATOR, "aggregator-2")},
            "3 aggregators are run by operator-1 and operator-2 ... at least 3 organisations",
        ),
        (
            {"coordinators": ("second-coordinator",)},
            {},
            "coordinator is coordinator ... allows second-coordinator ... edit coordinators",
        ),
        ({"max_rounds": 6}, {"rounds": 7}, "has rounds = 7 ... allows at most 6 ... edit max_rounds"),
        ({}, {"task": "lenet"}, "task 'lenet' ... not approved ... `hubbub policy approve`"),
        (
            {},
            {"roster_sha256": OTHER},
            f"for the roster ffffffffffff ... here {ROSTER.digest} is pinned ... ask for a manifest",
        ),
        ({}, {"strategy": "no-\x1b[2Jsuch"}, r"'no-\x1b[2Jsuch' (there is none such)"),
        # Those in a run are compared with the roster.
        ({}, {"cohort": make_cohort(client_names(5))}, "client-5 is not in the roster"),
        ({}, {"aggregators": (*aggregator_names(2), "stranger")}, "stranger is not in the roster"),
        ({}, {"coordinator": "stranger"}, "stranger is not in the roster"),
        ({}, {"cohort": THREE, "aggregators": (*aggregator_names(2), "client-4")}, "client-4"),
        ({}, {"aggregators": aggregator_names(2), "coordinator": "aggregator-3"}, "aggregator-3"),
        ({}, {"cohort": (*THREE, member("aggregator-twin", "operator-1"))}, "aggregator-twin"),
        # So that one hospital does not count as three.
        (
            {},
            {"cohort": (*THREE, member("client-4", "made-up"))},
            "client-4 belongs to org-4 in the roster, and to made-up in the manifest",
        ),
    ],
)
def test_one_broken_limit_is_one_objection_with_value_limit_and_way_out(
    limits: dict[str, object], proposed: dict[str, object], said: str
) -> None:
    (objection,) = judge(make_policy(**limits), propose(**proposed))

    for fragment in said.split(" ... "):
        assert fragment in objection
    assert objection.isprintable()


def test_the_last_run_is_joined_and_no_other() -> None:
    policy = make_policy(max_runs=2)

    assert judge(policy, propose(), runs_before=1) == ()
    (objection,) = judge(policy, propose(), runs_before=2)
    assert "has joined 2 runs, the policy allows 2" in objection


def go_on(*, min_clients: int = 3, **overrides: object) -> Manifest:
    """A manifest that goes on from a run, as all of its clients endorse it."""
    first = propose(min_clients=min_clients)
    endorsed = [endorse(IDENTITIES[name], first, OTHER) for name in first.clients]
    commitment, predecessor = gather(endorsed)
    return propose(**{"initial_model_sha256": commitment, "predecessor": predecessor, **overrides})


def test_a_run_goes_on_from_a_model_that_as_many_endorse_as_the_policy_wants_in_a_sum() -> None:
    """A newcomer cannot look at the predecessor's manifest: fewer could have made it up between them."""
    assert judge(make_policy(), go_on()) == ()
    assert judge(make_policy(min_clients=2), go_on(min_clients=2)) == ()
    (objection,) = judge(make_policy(), go_on(min_clients=2))
    assert "had a min_clients of 2" in objection
    assert "at least 3" in objection
    unendorsed = judge(make_policy(), go_on(initial_model_sha256="0" * 64))
    assert ["does not hold" in each for each in unendorsed] == [True] * 4


def test_another_roster_on_this_machine_is_not_believed_though_policy_and_manifest_agree() -> None:
    other = make_roster(make_identities())  # The same names, and other keys.

    of_policy, of_manifest = judge(make_policy(), propose(), roster=other)

    assert f"the roster here has the digest {other.digest[:12]}…" in of_policy
    assert f"here {other.digest} is pinned" in of_manifest


def test_the_demo_seed_is_refused_unless_the_policy_accepts_it() -> None:
    (objection,) = judge(make_policy(), propose(), demo_seed=True)

    assert "seed, which everybody knows" in objection
    assert judge(make_policy(demo_seed=True), propose(), demo_seed=True) == ()


@pytest.mark.parametrize("strategy", REVEALING)
def test_what_shows_a_server_anything_is_refused_unless_it_is_named(strategy: str) -> None:
    (objection,) = judge(make_policy(), propose(strategy=strategy))

    assert f"{strategy!r} ({STRATEGIES[strategy].reveals})" in objection
    assert "allows no-union, sec-union, partial-sec-union" in objection
    assert judge(make_policy(strategies=(strategy,)), propose(strategy=strategy)) == ()


@pytest.mark.parametrize("strategy", PRIVATE)
def test_what_shows_nothing_is_allowed_but_can_be_ruled_out(strategy: str) -> None:
    assert judge(make_policy(), propose(strategy=strategy)) == ()
    assert len(judge(make_policy(strategies=()), propose(strategy=strategy))) == 1


def test_a_shared_mask_is_refused_unless_it_is_named_and_with_one_bit_unless_that_is_allowed() -> None:
    masked, one_bit = propose(strategy="shared-mask"), propose(strategy="shared-mask", bits=1)
    named = make_policy(strategies=("shared-mask",))

    (objection,) = judge(make_policy(), masked)
    assert "'shared-mask' (no server learns anything of one client)" in objection
    assert judge(named, masked) == ()
    (objection,) = judge(named, one_bit)
    assert "bits = 1, the policy asks for at least 2, since with one bit a coordinate" in objection
    assert judge(make_policy(strategies=("shared-mask",), min_bits=1), one_bit) == ()


@pytest.mark.parametrize("strategy", SUMS)
def test_sums_of_numbers_are_refused_unless_they_are_named_and_then_added_once(strategy: str) -> None:
    """Round 1 over all less round 2 over all but one is that one's numbers, though no server learns anything."""
    once, twice = propose(strategy=strategy, rounds=1), propose(strategy=strategy, rounds=2)

    (objection,) = judge(make_policy(), once)
    assert f"{strategy!r} (no server learns anything of one client)" in objection
    named = make_policy(strategies=(strategy,))
    assert judge(named, once) == ()
    (objection,) = judge(named, twice)
    assert "2 rounds of" in objection
    assert "edit max_rounds_of_sums" in objection
    assert judge(make_policy(strategies=(strategy,), max_rounds_of_sums=2), twice) == ()
    assert judge(make_policy(), propose(rounds=2)) == (), "what learns says something new in each round"


def test_a_rule_that_the_policy_can_lift_is_named_with_the_way_out() -> None:
    for proposed, limit, value, said in (
        ({"verified": False}, "allow_unverified", True, "edit allow_unverified in the policy file"),
        (
            {"strategy": "sec-union", "block": 4},
            "max_block",
            4,
            "chooses blocks of 4 indices, the policy allows 1, since with blocks every client",
        ),
    ):
        (objection,) = judge(make_policy(), propose(**proposed))
        assert said in objection
        assert f"edit {limit}" in objection
        assert judge(make_policy(**{limit: value}), propose(**proposed)) == ()
    blocks = propose(strategy="sec-union", block=4)
    assert "every client knows everybody's sign" in judge(make_policy(max_block=3), blocks)[0]
    assert len(judge(make_policy(strategies=()), blocks)) == 2, "that it is ruled out is another reason"


@pytest.mark.parametrize(
    ("field", "limit", "most", "more"),
    [
        ("max_void_rounds", "max_void_rounds", 10, 11),
        ("local_steps", "max_local_steps", 1000, 1001),
        ("learning_rate", "max_learning_rate", 2.0, 2.5),
        ("server_momentum", "max_server_momentum", 0.9, 0.95),
        ("alpha_max", "max_alpha_max", 16.0, 16.5),
        ("q", "max_q", 16, 17),
        ("kappa", "max_kappa", 10.0, 10.5),
        ("first_factor_bound", "max_first_factor_bound", 1.0, 1.5),
    ],
)
def test_what_a_manifest_may_ask_of_a_client_is_capped(field: str, limit: str, most: float, more: float) -> None:
    """The author of a manifest would otherwise choose them at will, however it is approved."""
    manifest = propose(**{field: more})

    (objection,) = judge(make_policy().with_approval_of(manifest.run_id), manifest)

    assert f"has {field} = {more}, the policy allows at most {most}" in objection
    assert f"edit {limit} in the policy file" in objection
    assert judge(make_policy(), propose(**{field: most})) == ()
    assert judge(make_policy(**{limit: more}), manifest) == ()


def test_a_manifest_is_approved_by_its_run_id_by_its_task_or_by_a_rule_for_all() -> None:
    manifest = propose()
    unapproved = make_policy(approve_tasks=())

    assert len(judge(unapproved, manifest)) == 1
    assert len(judge(make_policy(approve_tasks=(), approved=(OTHER,)), manifest)) == 1
    assert len(judge(make_policy(approve_tasks=("lenet",)), manifest)) == 1
    assert judge(unapproved.with_approval_of(manifest.run_id), manifest) == ()
    assert judge(make_policy(approve_tasks=("lenet", "synthetic")), manifest) == ()
    assert judge(make_policy(approve_tasks=("*",)), manifest) == ()


def test_all_objections_are_made_at_once_and_approval_lifts_no_other_limit() -> None:
    manifest = propose(strategy="fedavg", min_clients=2, task="lenet", rounds=1000)

    assert len(judge(make_policy(), manifest, runs_before=20)) == 5
    assert len(judge(make_policy().with_approval_of(manifest.run_id), manifest, runs_before=20)) == 4


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_demo_may_do_everything_within_its_roster(strategy: str) -> None:
    asked: dict[str, object] = {
        "strategy": strategy,
        "min_clients": 2,
        "aggregators": aggregator_names(2),
        "task": "anything",
        "rounds": 100_000,
        "max_void_rounds": 1000,
        "local_steps": 10**6,
        "learning_rate": 1e9,
        "server_momentum": 0.0 if strategy in (*TAKES_NUMBERS, *OWN_MODELS) else 0.99,
        "alpha_max": 2.0**20,
        "q": 32,
    }
    demo = Policy.for_demo(ROSTER.digest)

    assert judge(demo, propose(**asked), runs_before=10_000, demo_seed=True) == ()
    assert len(judge(demo, propose(**asked, roster_sha256=OTHER))) == 1


def write(folder: Path, text: str) -> Path:
    path = folder / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_only_the_roster_need_be_said_and_values_are_read_as_they_stand(tmp_path: Path) -> None:
    pinned = f'roster_sha256 = "{OTHER}"\n'
    more = f'strategies = ["fedavg"]\nmin_clients = 5\napproved = ["{OTHER}"]\n'

    assert Policy.read(write(tmp_path, pinned)) == Policy(roster_sha256=OTHER)
    policy = Policy.read(write(tmp_path, pinned + more))
    assert (policy.strategies, policy.min_clients, policy.approved) == (("fedavg",), 5, (OTHER,))


def test_what_is_wrong_in_a_file_is_told_in_one_line(subtests: pytest.Subtests, tmp_path: Path) -> None:
    for line, complaint in [
        ("min_client = 3", "there is no 'min_client' in the trainer's policy; did you mean min_clients?"),
        ("volume = 11", "there is no 'volume' in the trainer's policy; there are roster_sha256, coordinators,"),
        ('strategies = ["no-onion"]', "strategies: there is no strategy 'no-onion'; choose one of: fedavg,"),
        ('strategies = "no-union"', "strategies: this is a list"),
        ("min_clients = 1", "min_clients: Input should be greater than or equal to 2"),
        ("min_clients = true", "min_clients: Input should be a valid integer"),
        ("min_clients = 3.0", "min_clients: Input should be a valid integer"),
        ("min_servers = 1", "min_servers: Input should be greater than or equal to 2"),
        ('approved = ["1234"]', "approved.0: String should match"),
        ('coordinators = ["The Hub"]', "coordinators.0: String should match"),
        ("max_runs = 0", "max_runs: "),
        ("max_runs_per_model = 0", "max_runs_per_model: Input should be greater than or equal to 1"),
        ("max_void_rounds_per_run = -1", "max_void_rounds_per_run: "),
        ("max_q = 33", "max_q: Input should be less than or equal to 32"),
        ("max_alpha_max = inf", "max_alpha_max: Input should be a finite number"),
        ("demo_seed = 1", "demo_seed: Input should be a valid boolean"),
        ("min_clients 3", "is not TOML: "),
    ]:
        with subtests.test(line):
            path = write(tmp_path, f'roster_sha256 = "{OTHER}"\n{line}\n')

            with pytest.raises(ConfigurationError) as caught:
                Policy.read(path)

            assert str(path) in str(caught.value)
            assert complaint in str(caught.value)
            assert "\n" not in str(caught.value)


def test_a_roster_must_be_pinned_in_a_file_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="roster_sha256: Field required"):
        Policy.read(write(tmp_path, "min_clients = 3"))
    with pytest.raises(ConfigurationError, match="`hubbub policy init` writes one"):
        Policy.read(tmp_path / "none.toml")
