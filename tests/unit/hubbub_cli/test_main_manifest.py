"""`hubbub manifest new`: a manifest of a roster's parties, drawn up where the task is installed."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hubbub.errors import ConfigurationError
from hubbub.ids import PartyId, Role
from hubbub.messages.manifest import CohortMember, Manifest, read_manifest
from hubbub.run_options import RunOptions
from hubbub.run_request import RunRequest, request_again
from hubbub.runtime.message_checks import find_disagreements
from hubbub.trust.identity import Identity, new_identity
from hubbub.trust.roster import read_roster
from hubbub.trust.succession import endorse
from hubbub_cli.main import app
from hubbub_local.federation import gather
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.workspace import digest
from support.builders import make_manifest
from support.parties import make_identity, make_parties

CLINICS = tuple(PartyId(f"clinic-{letter}") for letter in "abcd")
SERVERS = tuple(PartyId(name) for name in ("north", "south", "west"))
# Two of the clinics belong to one organisation.
PARTIES = make_parties(
    tuple(zip(CLINICS, ("trust", "trust", "charity", "university"), strict=True)), SERVERS, PartyId("hub")
)


def write_roster(path: Path, *newcomers: Identity) -> Path:
    roster = gather([*PARTIES.identities.values(), *newcomers]).roster
    path.write_text(roster.model_dump_json(), encoding="utf-8")
    return path


@pytest.fixture
def roster(tmp_path: Path) -> Path:
    return write_roster(tmp_path / "roster.json")


def draw_up(roster: Path, *options: str, task: str = "synthetic") -> str:
    arguments = ["manifest", "new", "--roster", str(roster), "--task", task, *options]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def read_new(roster: Path, *options: str, task: str = "synthetic") -> Manifest:
    return read_manifest(draw_up(roster, *options, task=task))


ASKED = {
    "strategy": "sec-union",
    "wire": "paper",
    "rounds": 7,
    "local_steps": 3,
    "learning_rate": 0.5,
    "server_momentum": 0.75,
    "weights": "samples",
    "max_samples": 500,
    "rho": 0.25,
    "q": 4,
    "block": 16,
    "alpha_rule": "mean",
    "feedback": "lost",
    "alpha_max": 1000.0,
    "seed": 3,
    "min_clients": 2,
    "evaluate_every": 5,
    "target": 0.98,
    "patience": 4,
    "phase_timeout_s": 90.0,
}
FLAGS = {"alpha_rule": "--alpha", "phase_timeout_s": "--phase-timeout"}


def test_every_option_of_a_run_is_a_flag_and_a_field_of_the_manifest(roster: Path) -> None:
    flags = [
        word
        for name, value in ASKED.items()
        for word in (FLAGS.get(name, f"--{name.replace('_', '-')}"), str(value))
    ]

    asked, plain = (read_new(roster, *options, task="synthetic:300") for options in (flags, ()))

    assert {*ASKED, "verified", "bits", "number_bits"} == {field.name for field in fields(RunOptions)}
    assert {name: getattr(asked, name) for name in ASKED} == ASKED
    assert read_new(roster, "--feedback", "paper").feedback == "paper"
    assert read_new(roster, "--strategy", "shared-mask", "--bits", "3").bits == 3
    assert read_new(roster, "--strategy", "sum", "--number-bits", "64").number_bits == 64
    assert asked.parameters == 300
    assert asked.initial_model_sha256 == digest(SyntheticTask(300).initial_model(3))
    assert {name: getattr(plain, name) for name in RunOptions().given()} == RunOptions().given()
    assert (plain.alpha_max, plain.target, plain.phase_timeout_s) == (16.0, None, 3600.0)
    assert (
        not {
            "bits",
            "block",
            "number_bits",
            "learning_rate",
            "patience",
            "predecessor",
            "server_momentum",
            "target",
            "weights",
        }
        & json.loads(draw_up(roster)).keys()
    )


def test_averages_of_whole_updates_weigh_by_samples_unless_it_is_said_otherwise(roster: Path) -> None:
    drawn = [read_new(roster, *("--strategy", name)) for name in ("secure-fedavg", "fedavg", "sec-union")]
    assert [each.weights for each in drawn] == ["samples", "samples", "equal"]
    assert read_new(roster, "--strategy", "secure-fedavg", "--weights", "equal").weights == "equal"


def test_a_mask_has_its_own_rho_and_a_higher_learning_rate_unless_they_are_given(roster: Path) -> None:
    mask = ("--strategy", "shared-mask")
    drawn = [
        read_new(roster, *options, task="lenet")
        for options in ((), mask, (*mask, "--rho", "0.25"), (*mask, "--learning-rate", "0.05"))
    ]

    assert [(each.rho, each.learning_rate) for each in drawn] == [
        (0.1, None),
        (0.03, 0.12),
        (0.25, 0.04),
        (0.03, 0.05),
    ]
    assert read_new(roster, *mask, task="synthetic:300").learning_rate is None, "it tells no rate of its own"


def test_every_manifest_begins_from_a_model_of_its_own_unless_a_seed_is_given(roster: Path) -> None:
    """Or else data owners would refuse an honest second experiment."""
    drawn = [read_new(roster) for _ in range(2)]

    assert len({each.initial_model_sha256 for each in drawn}) == 2
    for each in drawn:
        assert each.initial_model_sha256 == digest(SyntheticTask().initial_model(each.seed))


def test_it_names_everybody_in_the_roster_with_its_organisation_and_the_roster_itself(roster: Path) -> None:
    manifest = read_new(roster)

    assert (manifest.clients, manifest.aggregators, manifest.coordinator) == (CLINICS, SERVERS, "hub")
    assert [member.organisation for member in manifest.cohort] == ["trust", "trust", "charity", "university"]
    assert manifest.roster_sha256 == PARTIES.roster.digest
    assert manifest.min_clients == 3, "of three organisations, not of four clinics"


def test_it_names_those_who_are_asked_for_in_their_order(roster: Path) -> None:
    manifest = read_new(
        roster, "--clients", "clinic-d, clinic-a,clinic-c", "--aggregators", "west,north", "--coordinator", "hub"
    )

    assert manifest.clients == ("clinic-d", "clinic-a", "clinic-c")
    assert manifest.aggregators == ("west", "north")


def test_two_manifests_alike_are_two_runs(roster: Path) -> None:
    first, second = (read_new(roster, "--seed", "3") for _ in range(2))

    assert first.run_id != second.run_id
    assert first.model_copy(update={"nonce": second.nonce}) == second


def test_it_is_written_to_a_file_and_its_run_is_named(roster: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    said = draw_up(roster, "--out", str(file), task="lenet")

    written = read_manifest(file.read_bytes())
    assert written.run_id in said
    assert written.parameters == 61_706, "known without torch and data"


def test_a_run_that_loses_many_indices_is_warned_about_beside_its_manifest(roster: Path) -> None:
    arguments = ["manifest", "new", "--roster", str(roster), "--task", "synthetic", "--strategy", "sec-union"]
    result = CliRunner().invoke(app, [*arguments, "--rho", "0.5", "--q", "1"], catch_exceptions=False)
    silent = CliRunner().invoke(app, arguments, catch_exceptions=False)

    assert read_manifest(result.stdout).rho == 0.5
    assert "warning: sec-union with q = 1, rho = 0.5 and 4 clients loses 47% of the indices" in result.stderr
    assert silent.stderr == ""
    chosen = CliRunner().invoke(app, [*arguments, "--rho", "0.5"], catch_exceptions=False)
    assert (read_manifest(chosen.stdout).q, chosen.stderr) == (2, "")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--clients", "clinic-a"), "at least 2 clients"),
        (("--clients", "clinic-a,clinic-z"), "the roster has no client clinic-z; it has clinic-a, clinic-b,"),
        (("--clients", "north,clinic-a"), "the roster has no client north"),
        (("--clients", "clinic-a,clinic-a"), "clinic-a"),
        (("--aggregators", "hub,north"), "the roster has no aggregator hub; it has north, south, west"),
        (("--coordinator", "clinic-a"), "the roster has no coordinator clinic-a; it has hub"),
        (("--min-clients", "4"), "min_clients is 4"),
        (("--target", "98"), "target: accuracy lies between 0 and 1, not at 98"),
        (("--target", "0.98", "--evaluate-every", "0"), "a target needs scores"),
        (("--phase-timeout", "0"), "phase_timeout_s: "),
        (("--strategy", "sec-union", "--rho", "1", "--q", "1"), "loses 100% .* nearly all marks cancel"),
        (("--alpha-max", "-1"), "alpha_max is -1.0; choose a finite number above 0"),
        (("--out", "/nowhere/run.json"), "/nowhere/run.json cannot be written"),
    ],
)
def test_what_cannot_be_is_refused(roster: Path, options: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        draw_up(roster, *options)


def test_with_two_coordinators_one_must_be_named(tmp_path: Path) -> None:
    path = write_roster(tmp_path / "two.json", make_identity("desk", Role.COORDINATOR, "desk"))

    assert read_new(path, "--coordinator", "desk").coordinator == "desk"
    with pytest.raises(ConfigurationError, match="2 coordinators: say which one"):
        draw_up(path)


def test_a_roster_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="missing"):
        draw_up(tmp_path / "missing")


# Going on from a completed run ----------------------------------------------------------------------------


def leave_endorsements(
    folder: Path, *clients: str, commitment: str = "c" * 64, identities: Mapping[PartyId, Identity] | None = None
) -> list[str]:
    """Write what the trainers of a run over all clinics leave on their disks; return options of the command."""
    identities = identities or PARTIES.identities
    cohort = tuple(CohortMember(name=name, organisation=PARTIES.identities[name].organisation) for name in CLINICS)
    run = make_manifest(cohort=cohort, min_clients=3, roster_sha256=PARTIES.roster.digest, seed=11)
    options = []
    for name in clients:
        path = folder / f"{name}-{commitment[:4]}" / "endorsement.json"
        path.parent.mkdir(exist_ok=True)
        endorsed = endorse(identities[PartyId(name)], run, commitment)
        path.write_text(endorsed.model_dump_json(indent=2), encoding="utf-8")
        options += ["--endorsement", str(path)]
    return options


THREE = (CLINICS[0], CLINICS[2], CLINICS[3])


def test_it_goes_on_from_the_model_that_was_endorsed(roster: Path, tmp_path: Path) -> None:
    manifest = read_new(roster, *leave_endorsements(tmp_path, *THREE))

    assert manifest.initial_model_sha256 == "c" * 64
    assert manifest.seed == 11, "the predecessor's: what is frozen in the model may follow from it"
    assert manifest.predecessor is not None
    assert [each.client for each in manifest.predecessor.endorsements] == list(THREE)
    assert [member.name for member in manifest.predecessor.cohort] == list(CLINICS)
    assert find_disagreements(manifest, PARTIES.roster) == ()


def test_it_goes_on_with_other_clients_and_a_roster_that_has_grown(tmp_path: Path) -> None:
    path = write_roster(tmp_path / "grown.json", make_identity("clinic-e", Role.CLIENT, "newcomer"))

    manifest = read_new(path, "--clients", "clinic-e,clinic-b,clinic-d", *leave_endorsements(tmp_path, *THREE))

    assert manifest.predecessor is not None
    assert find_disagreements(manifest, read_roster(path)) == ()


def test_what_a_successor_lacks_is_told(roster: Path, tmp_path: Path) -> None:
    salt = tmp_path / "succession.json"
    salt.write_text('{"salt": "00"}', encoding="utf-8")
    three = leave_endorsements(tmp_path, *THREE)
    other = leave_endorsements(tmp_path, "clinic-b", commitment="d" * 64)
    for options, complaint in (
        (three[:4], "not enough: clients of 3 organisations"),
        ([*three[:4], "--endorsement", str(three[1])], "a client endorses its run's model once"),
        (
            leave_endorsements(tmp_path, "clinic-a", "clinic-b", "clinic-c"),
            "not enough: clients of 3 organisations",
        ),
        ([*three, *other], "2 different models or runs: take those of one run"),
        ([*three, "--endorsement", str(tmp_path / "none.json")], r"none\.json cannot be read: No such file"),
        ([*three, "--endorsement", str(tmp_path)], "cannot be read: Is a directory"),
        ([*three, "--endorsement", str(roster)], r"roster\.json is not an endorsement"),
        ([*three, "--endorsement", str(salt)], r"succession\.json is not an endorsement"),
    ):
        with pytest.raises(ConfigurationError, match=complaint):
            draw_up(roster, *options)


def test_endorsements_that_the_roster_does_not_bear_out_are_refused(roster: Path, tmp_path: Path) -> None:
    """As with a roster in which somebody has a new key."""
    identities = {**PARTIES.identities, THREE[0]: new_identity(THREE[0], Role.CLIENT, "trust")}
    options = leave_endorsements(tmp_path, *THREE, identities=identities)

    with pytest.raises(ConfigurationError, match="the endorsement of clinic-a does not hold: this is not signed"):
        draw_up(roster, *options)


def test_a_run_of_newcomers_alone_is_refused(tmp_path: Path) -> None:
    newcomers = [make_identity(f"clinic-{letter}", Role.CLIENT, f"clinic-{letter}") for letter in "xyz"]
    path = write_roster(tmp_path / "grown.json", *newcomers)

    with pytest.raises(ConfigurationError, match="no client of this run was in"):
        draw_up(path, "--clients", "clinic-x,clinic-y,clinic-z", *leave_endorsements(tmp_path, *THREE))


# From a request -----------------------------------------------------------------------------------------------


def write_request(path: Path, request: RunRequest, **changes: object) -> Path:
    document = {**json.loads(request.model_dump_json(exclude_none=True)), **changes}
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_a_request_for_a_run_like_another_gives_its_manifest_with_another_model(
    roster: Path, tmp_path: Path
) -> None:
    first = read_new(roster, "--rounds", "7", "--strategy", "sec-union", "--clients", ",".join(CLINICS[:3]))
    request = request_again(first, seed=5)
    file = write_request(tmp_path / "request.json", request)

    again = read_manifest(
        CliRunner().invoke(app, ["manifest", "new", "--roster", str(roster), "--from", str(file)]).stdout
    )

    changed = {name for name, value in again if value != getattr(first, name)}
    assert changed == {"seed", "initial_model_sha256", "nonce"}
    assert again.seed == 5
    assert (request.options.rho, request.options.q) == (None, None), "another strategy gets its own"


@pytest.mark.parametrize("asked", [("--rho", "0.25"), ("--strategy", "sec-union", "--q", "7")])
def test_a_request_keeps_what_somebody_asked_for(roster: Path, asked: tuple[str, ...]) -> None:
    options = request_again(read_new(roster, *asked), seed=5).options

    assert (options.rho, options.q) in {(0.25, None), (None, 7)}


def test_a_request_that_does_not_fit_is_refused_with_what_is_wrong(roster: Path, tmp_path: Path) -> None:
    request = request_again(read_new(roster), seed=5)
    file = tmp_path / "request.json"
    wrong: list[tuple[dict[str, object], list[str], str]] = [
        ({}, ["--rounds", "3"], "leave the other options out"),
        ({}, ["--clients", "clinic-a"], "leave the other options out"),
        ({"roster_sha256": "0" * 64}, [], "was written for another roster"),
        ({"options": {"speed": 3}}, [], "there are no options speed"),
        ({"options": {"rounds": "many"}}, [], "options.rounds: "),
        ({"format": "hubbub-request-2"}, [], "is not a request for a run: format: "),
        ({"clients": ["nobody", *CLINICS]}, [], "nobody"),
        ({"task": "alchemy"}, [], "there is no task 'alchemy'"),
    ]
    for changes, more, complaint in wrong:
        write_request(file, request, **changes)
        result = CliRunner().invoke(app, ["manifest", "new", "--roster", str(roster), "--from", str(file), *more])
        assert isinstance(result.exception, ConfigurationError)
        assert complaint in str(result.exception)
