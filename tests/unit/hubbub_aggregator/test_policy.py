"""The policy of an aggregator's operator: what the aggregator refuses, and how the operator learns why."""

from __future__ import annotations

from pathlib import Path

import pytest

from hubbub.errors import ConfigurationError
from hubbub.messages.manifest import Manifest
from hubbub.strategies.registry import STRATEGIES
from hubbub_aggregator.policy import AggregatorPolicy
from support.builders import make_manifest
from support.parties import roster_of

MANIFEST = make_manifest(clients=4, servers=3)
ROSTER = roster_of(MANIFEST)


def propose(**overrides: object) -> Manifest:
    return make_manifest(clients=4, servers=3, **overrides)


def judge(manifest: Manifest, limits: dict[str, object] | None = None, *, runs_before: int = 0) -> tuple[str, ...]:
    policy = AggregatorPolicy.model_validate({"roster_sha256": ROSTER.digest, **(limits or {})})
    return tuple(map(str, policy.objections(manifest, roster=ROSTER, runs_before=runs_before)))


@pytest.mark.parametrize(
    ("limits", "proposed", "said"),
    [
        ({"coordinators": ("hub",)}, {}, ["coordinator is coordinator", "allows hub", "edit coordinators"]),
        ({"strategies": ("sum",)}, {}, ["'no-union'", "allows sum", "edit strategies"]),
        ({"max_parameters": 99}, {"parameters": 100}, ["parameters = 100", "at most 99", "edit max_parameters"]),
        ({"max_cohort": 3}, {}, ["clients = 4", "at most 3", "edit max_cohort"]),
        ({"min_clients": 4}, {"min_clients": 3}, ["min_clients is 3", "at least 4", "edit min_clients"]),
        ({"min_servers": 4}, {}, ["has 3 aggregators", "at least 4", "edit min_servers"]),
        ({"max_rounds": 1}, {"rounds": 2}, ["rounds = 2", "at most 1", "edit max_rounds"]),
        ({}, {"max_void_rounds": 11}, ["max_void_rounds = 11", "at most 10", "edit max_void_rounds"]),
        ({"approve_tasks": ()}, {}, ["task 'synthetic'", "not approved", "`hubbub policy approve`"]),
        ({}, {"roster_sha256": "f" * 64}, ["for the roster ffffffffffff", f"here {ROSTER.digest} is pinned"]),
        ({"roster_sha256": "f" * 64}, {}, ["the policy pins ffffffffffff…"]),
    ],
)
def test_one_broken_limit_is_one_objection_with_value_limit_and_way_out(
    limits: dict[str, object], proposed: dict[str, object], said: list[str]
) -> None:
    (objection,) = judge(propose(**proposed), limits)

    for fragment in said:
        assert fragment in objection


def test_a_manifest_at_every_limit_is_joined() -> None:
    manifest = propose(min_clients=3, rounds=7, max_void_rounds=2, parameters=100)
    limits: dict[str, object] = {
        "max_parameters": 100,
        "max_cohort": 4,
        "max_rounds": 7,
        "max_void_rounds": 2,
        "max_runs": 5,
        "min_servers": 3,
        "coordinators": ("coordinator",),
    }

    assert judge(manifest, limits, runs_before=4) == ()
    (objection,) = judge(manifest, limits, runs_before=5)
    assert "this aggregator has joined 5 runs, the policy allows 5 in all" in objection


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_by_default_it_serves_what_shows_it_nothing(strategy: str) -> None:
    objections = judge(propose(strategy=strategy))

    assert [STRATEGIES[strategy].reveals in each for each in objections] == (
        [True] if STRATEGIES[strategy].reveals else []
    )
    assert judge(propose(strategy=strategy), {"strategies": (strategy,)}) == ()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_demo_serves_everything_of_its_roster(strategy: str) -> None:
    policy = AggregatorPolicy.for_demo(ROSTER.digest)
    manifest = propose(strategy=strategy, min_clients=2, rounds=100_000, max_void_rounds=1000, parameters=10**9)

    assert policy.objections(manifest, roster=ROSTER, runs_before=10_000) == ()
    assert len(policy.objections(propose(roster_sha256="f" * 64), roster=ROSTER, runs_before=0)) == 1


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("max_parameter = 3", "no 'max_parameter' in the aggregator's policy; did you mean max_parameters?"),
        ("demo_seed = true", "there is no 'demo_seed' in the aggregator's policy; there are roster_sha256,"),
        ("max_cohort = 0", "max_cohort: Input should be greater than or equal to 1"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_in_one_line(line: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(f'roster_sha256 = "{ROSTER.digest}"\n{line}\n', encoding="utf-8")

    with pytest.raises(ConfigurationError) as caught:
        AggregatorPolicy.read(path)

    assert str(path) in str(caught.value)
    assert complaint in str(caught.value)
