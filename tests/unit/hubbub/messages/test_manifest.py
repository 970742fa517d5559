import hashlib
import json
import math
import random

import pytest
from pydantic import ValidationError

from hubbub.errors import ConfigurationError
from hubbub.ids import PartyId
from hubbub.messages.manifest import (
    CHUNK_BYTES,
    CohortMember,
    Manifest,
    MetricClaim,
    RangeClaim,
    default_min_clients,
    describe_run,
    read_manifest,
)
from hubbub.protocol.layout import Vector, plan_chunks
from hubbub.transport.base import MAX_BODY_BYTES
from support.builders import aggregator_names, client_names, make_cohort, make_manifest
from support.succession import make_predecessor, make_successor

VALID = json.loads(make_manifest().canonical)


def document(**changes: object) -> str:
    """A manifest as JSON, with some fields changed."""
    return json.dumps({**VALID, **changes})


def complaint(text: str | bytes) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_manifest(text)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("this is not a manifest: ")
    return str(caught.value)


# The canonical form and the run id ----------------------------------------------------------------------------


def test_the_canonical_form_does_not_depend_on_the_order_of_fields() -> None:
    chance = random.Random(1)
    for _ in range(20):
        names = chance.sample(sorted(VALID), len(VALID))
        shuffled = json.dumps({name: VALID[name] for name in names}, indent=2)
        assert read_manifest(shuffled).canonical == make_manifest().canonical


def test_defaults_and_other_spellings_of_a_number_make_no_difference() -> None:
    short = {name: value for name, value in VALID.items() if value != Manifest.model_fields[name].default}
    assert len(short) < len(VALID)

    assert read_manifest(json.dumps(short)).run_id == make_manifest().run_id
    assert read_manifest(document(rho=1)).run_id == read_manifest(document(rho=1.0)).run_id
    assert read_manifest(document().replace('"rho": 0.1', '"rho": 1e-1')).run_id == make_manifest().run_id


def test_the_canonical_form_is_sorted_ascii_without_spaces_and_reads_back_as_the_same() -> None:
    manifest = make_manifest(task="synthétique")

    assert manifest.canonical == manifest.canonical.strip()
    assert b" " not in manifest.canonical
    assert b"synth\\u00e9tique" in manifest.canonical
    assert list(json.loads(manifest.canonical)) == sorted(VALID)
    assert read_manifest(manifest.canonical) == manifest
    assert manifest.run_id == hashlib.sha256(manifest.canonical).hexdigest()


def test_the_run_id_of_a_manifest_never_changes() -> None:
    """Other parties compute it too: a change of this value is a change of the format."""
    manifest = make_manifest(roster_sha256="2" * 64)

    assert manifest.run_id == "6a28f794ddd0760763e7444af68c0314af42770daeef5f42efa36700d04652b8"


ACCURACY = MetricClaim(name="accuracy")
OTHER_VALUES: dict[str, object] = {
    "cohort": make_cohort(client_names(4)),
    "aggregators": aggregator_names(3),
    "coordinator": "conductor",
    "min_clients": 2,
    "strategy": "sec-union",
    "rho": 0.2,
    "parameters": 101,
    "alpha_max": 8.0,
    "bits": 3,
    "kappa": 3.0,
    "first_factor_bound": 0.2,
    "factor_floor": 0.002,
    "q": 2,
    "block": 4,
    "number_bits": 64,
    "ranges": (RangeClaim(count=100, largest=1.0),),
    "verified": False,
    "alpha_rule": "mean",
    "feedback": "paper",
    "chunk_bytes": 2 * CHUNK_BYTES,
    "task": "lenet",
    "local_steps": 3,
    "learning_rate": 0.25,
    "server_momentum": 0.5,
    "weights": "samples",
    "max_samples": 10,
    "rounds": 3,
    "scores": "none",
    "metrics": (ACCURACY,),
    "score_weights": "examples",
    "max_examples": 10,
    "evaluate_every": 2,
    "target": 0.98,
    "patience": 3,
    "seed": 8,
    "initial_model_sha256": "1" * 64,
    "predecessor": make_predecessor(),
    "phase_timeout_s": 60.0,
    "max_void_rounds": 4,
    "roster_sha256": "3" * 64,
    "nonce": "1" * 32,
}
SINGLE_VALUED = {"format", "factor_bits", "wire"}


SUCCESSOR = json.loads(make_successor().canonical)


@pytest.mark.parametrize(
    ("field", "default"),
    [
        ("predecessor", None),
        ("block", 1),
        ("number_bits", 32),
        ("ranges", []),
        ("learning_rate", None),
        ("patience", 0),
        ("server_momentum", 0.0),
        ("weights", "equal"),
        ("max_samples", 1_000_000),
    ],
)
def test_a_newer_field_with_its_default_is_left_out_of_the_canonical_form(field: str, default: object) -> None:
    """Runs from before there was such a field keep their ids, and so the tombstones that name them."""
    assert field not in VALID
    assert read_manifest(document(**{field: default})).run_id == make_manifest().run_id


def test_a_manifest_with_blocks_reads_back_as_the_same_and_says_so_to_the_protocol() -> None:
    manifest = make_manifest(strategy="sec-union", block=7)

    assert read_manifest(manifest.canonical) == manifest
    assert json.loads(manifest.canonical)["block"] == 7
    parameters = manifest.protocol_parameters
    assert (parameters.block, parameters.blocks, parameters.kept_blocks) == (7, 15, 1)


def test_a_successor_reads_back_as_the_same_manifest() -> None:
    manifest = make_successor()

    assert manifest.predecessor is not None
    assert read_manifest(manifest.canonical) == manifest
    assert read_manifest(manifest.model_dump_json()).run_id == manifest.run_id
    assert list(SUCCESSOR["predecessor"]) == ["cohort", "endorsements", "min_clients", "run"]


@pytest.mark.parametrize("field", ["run", "cohort", "min_clients", "endorsements"])
def test_every_field_of_the_predecessor_changes_the_run_id(field: str) -> None:
    other: dict[str, object] = {
        "run": "1" * 64,
        "cohort": SUCCESSOR["predecessor"]["cohort"][::-1],
        "min_clients": 2,
        "endorsements": SUCCESSOR["predecessor"]["endorsements"][::-1],
    }
    predecessor = {**SUCCESSOR["predecessor"], field: other[field]}

    assert read_manifest(document(**{**SUCCESSOR, "predecessor": predecessor})).run_id != make_successor().run_id


def test_every_field_changes_the_run_id(subtests: pytest.Subtests) -> None:
    assert set(OTHER_VALUES) | SINGLE_VALUED == set(Manifest.model_fields)
    for field, value in OTHER_VALUES.items():
        with subtests.test(field):
            metrics = (ACCURACY,) if field in {"target", "patience"} else ()
            # Strategies that have blocks, bits and numbers.
            strategies = {"strategy": "no-union", "bits": "shared-mask", "number_bits": "sum", "ranges": "sum"}
            strategy = strategies.get(field, "sec-union")
            weights = "samples" if field == "max_samples" else "equal"
            fields = dict(make_manifest(strategy=strategy, metrics=metrics, weights=weights))
            before = Manifest.model_validate(fields)

            assert Manifest.model_validate({**fields, field: value}).run_id != before.run_id


def test_what_the_audit_log_says_of_a_run_is_plain_json_and_names_the_same_run() -> None:
    manifest = make_manifest()

    said = json.loads(json.dumps(describe_run(manifest)))

    assert read_manifest(json.dumps(said["manifest"])).run_id == manifest.run_id
    assert said["roster_sha256"] == manifest.roster_sha256
    assert make_manifest(cohort=manifest.cohort[::-1]).run_id != manifest.run_id, "the order is part of the run"


# What cannot be ---------------------------------------------------------------------------------------------


def member(name: str, organisation: str) -> dict[str, str]:
    return {"name": name, "organisation": organisation}


TWO = [member("client-1", "org-1"), member("client-2", "org-2")]


def after(**changes: object) -> dict[str, object]:
    """A predecessor with something wrong with it."""
    return {**SUCCESSOR, "predecessor": {**SUCCESSOR["predecessor"], **changes}}


ENDORSED: list[dict[str, str]] = SUCCESSOR["predecessor"]["endorsements"]
FORMER: list[dict[str, str]] = SUCCESSOR["predecessor"]["cohort"]

REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "one client": ({"cohort": TWO[:1]}, "a cohort needs at least 2 clients"),
    "one aggregator": ({"aggregators": ["aggregator-1"]}, "additive sharing needs at least 2 aggregators"),
    "a client twice": ({"cohort": [*TWO, TWO[0]]}, "client-1 stands for several"),
    "an aggregator twice": ({"aggregators": ["a", "a"]}, "but a stands for several"),
    "a client that aggregates": ({"aggregators": ["client-1", "a"]}, "client-1 stands for several"),
    "an aggregator that coordinates": ({"coordinator": "aggregator-2"}, "aggregator-2 stands for several"),
    "rho of 0": ({"rho": 0}, "rho is 0.0; it must be above 0 and at most 1"),
    "rho above 1": ({"rho": 1.0000001}, "above 0 and at most 1"),
    "rho NaN": ({"rho": math.nan}, "above 0 and at most 1"),
    "rho infinite": ({"rho": math.inf}, "above 0 and at most 1"),
    "rho as text": ({"rho": "0.1"}, "rho: Input should be a valid number"),
    "k = 0": ({"rho": 0.009}, "keeps none of them; choose a larger rho"),
    "a block of 0": ({"strategy": "sec-union", "block": 0}, "block is 0; blocks of sec-union have from 1 to 1024"),
    "a block that is too large": ({"strategy": "sec-union", "block": 1025}, "block is 1025"),
    "a block beyond k": (
        {"strategy": "sec-union", "block": 11},
        "a client keeps 10 indices, less than one block of 11: take a larger rho or a smaller block",
    ),
    "blocks without sec-union": (
        {"strategy": "partial-sec-union", "block": 2},
        "blocks of indices are for sec-union alone",
    ),
    "blocks to the letter": (
        {"strategy": "sec-union", "block": 2, "feedback": "paper"},
        "with blocks nothing is said outside of V",
    ),
    "weighted sums": (
        {"strategy": "sum", "weights": "samples"},
        "sum adds numbers as they are: leave weights out",
    ),
    "a cap on samples that weigh nothing": (
        {"max_samples": 10},
        "max_samples has no effect with weights = equal: leave it out, or choose weights = samples",
    ),
    "bits without shared-mask": ({"strategy": "sec-union", "bits": 3}, "bits are for shared-mask alone"),
    "no bits": ({"strategy": "shared-mask", "bits": 0}, "bits is 0; levels of shared-mask have from 1 to 4 bits"),
    "a block as text": ({"strategy": "sec-union", "block": "2"}, "block: "),
    "min_clients of 1": ({"min_clients": 1}, "min_clients is 1; it must lie between 2 and the 3"),
    "min_clients of 0": ({"min_clients": 0}, "min_clients: "),
    "min_clients above the cohort": ({"min_clients": 4}, "min_clients is 4; it must lie between 2 and the 3"),
    "one organisation": (
        {"cohort": [member("client-1", "org"), member("client-2", "org")], "min_clients": 2},
        "it must lie between 2 and the 1 organisations",
    ),
    "alpha_max NaN": ({"alpha_max": math.nan}, "alpha_max"),
    "alpha_max infinite": ({"alpha_max": math.inf}, "alpha_max"),
    "alpha_max of 0": ({"alpha_max": 0.0}, "alpha_max"),
    "kappa under 1": ({"kappa": 0.9}, "kappa is 0.9; choose a finite number of at least 1"),
    "a floor above the first bound": ({"factor_floor": 0.5}, "the floor at most the first bound"),
    "no parameters": ({"parameters": 0}, "parameters: "),
    "parameters as a fraction": ({"parameters": 100.5}, "parameters: "),
    "parameters as a boolean": ({"parameters": True}, "parameters: "),
    "parameters beyond a double": ({"parameters": 2**53}, "parameters: "),
    "negative seed": ({"seed": -1}, "seed: "),
    "no rounds": ({"rounds": 0}, "rounds: "),
    "a target without scores": ({"target": 0.9}, "a target needs scores"),
    "a target in per cent": (
        {"metrics": [{"name": "accuracy"}], "target": 98},
        "target: accuracy lies between 0 and 1, not at 98",
    ),
    "patience without scores": ({"patience": 3}, "patience needs scores"),
    "patience where no round is scored": (
        {"metrics": [{"name": "accuracy"}], "patience": 3, "evaluate_every": 0},
        "patience needs scores",
    ),
    "patience below zero": ({"metrics": [{"name": "accuracy"}], "patience": -1}, "patience: "),
    "a target NaN": ({"target": math.nan}, "target: "),
    "a metric twice": ({"metrics": [{"name": "loss"}, {"name": "loss"}]}, "a metric is declared once"),
    "a metric without a name": ({"metrics": [{"name": ""}]}, "a metric's name has 1 to 40 letters"),
    "a metric with wrong bounds": ({"metrics": [{"name": "loss", "low": 2}]}, "the bounds of loss"),
    "no steps": ({"local_steps": 0}, "local_steps: "),
    **{
        f"a learning rate of {rate}": ({"learning_rate": rate}, "learning_rate: ")
        for rate in (0, -0.1, math.nan, math.inf, "0.1")
    },
    **{
        f"a server momentum of {share}": ({"server_momentum": share}, "server_momentum: ")
        for share in (-0.1, 0.991, math.nan, math.inf, "0.1")
    },
    **{
        f"momentum of {strategy}": ({"server_momentum": 0.5, "strategy": strategy}, f"{strategy} moves no model")
        for strategy in ("sum", "sparse-sum")
    },
    "timeout of 0": ({"phase_timeout_s": 0}, "phase_timeout_s: "),
    "timeout infinite": ({"phase_timeout_s": math.inf}, "phase_timeout_s: "),
    "negative void rounds": ({"max_void_rounds": -1}, "max_void_rounds: "),
    "chunks too small to cut": ({"chunk_bytes": 255}, "chunk_bytes: "),
    "chunks that no broker takes": ({"chunk_bytes": 16 << 20}, "chunk_bytes: "),
    "another format": ({"format": 2}, "format: "),
    "another wire mode": ({"wire": "telegram"}, "wire: "),
    "another fixed point": ({"factor_bits": 16}, "factor_bits: "),
    "numbers in other words": ({"strategy": "sum", "number_bits": 48}, "number_bits: "),
    "long words without numbers": ({"number_bits": 64}, "number_bits and ranges are for sum and sparse-sum alone"),
    "ranges without numbers": ({"ranges": [{"count": 100, "largest": 1.0}]}, "number_bits and ranges are for"),
    "ranges of fewer numbers": (
        {"strategy": "sum", "ranges": [{"count": 60, "largest": 1.0}, {"count": 39, "largest": 2.0}]},
        "the ranges are of 99 numbers, and there are 100",
    ),
    "a range of nothing": ({"strategy": "sum", "ranges": [{"count": 100, "largest": 0.0}]}, "largest: "),
    "a range above alpha_max": (
        {"strategy": "sum", "ranges": [{"count": 100, "largest": 16.5}]},
        "a range is above alpha_max, which is 16",
    ),
    "a range of more numbers than fit any memory": (
        {"strategy": "sum", "ranges": [{"count": 2**52, "largest": 1.0}]},
        "numbers, and there are 100",
    ),
    "too many ranges": ({"strategy": "sum", "ranges": [{"count": 1, "largest": 1.0}] * 4097}, "ranges: "),
    "sums that round whole numbers": (
        {"strategy": "sum", "alpha_max": 1e12},
        "with numbers up to 1e+12 and number_bits = 32, sums of whole numbers are not exact",
    ),
    "a digest in capitals": ({"initial_model_sha256": "A" * 64}, "initial_model_sha256: "),
    "no roster": ({"roster_sha256": None}, "roster_sha256: "),
    "a short digest of the roster": ({"roster_sha256": "0" * 63}, "roster_sha256: "),
    "a short nonce": ({"nonce": "0"}, "nonce: "),
    "an unknown field": ({"colour": "red"}, "colour: Extra inputs are not permitted"),
    "a path as a name": ({"coordinator": "../x"}, "coordinator: "),
    "a name with a newline": ({"coordinator": "coordinator\n"}, "coordinator: "),
    "an endorsement too few": (
        after(endorsements=ENDORSED[:2]),
        "clients of 3 organisations of the predecessor's",
    ),
    "no endorsement": (after(endorsements=[]), "must endorse its model"),
    "one endorsement, and a min_clients of 1": (after(endorsements=ENDORSED[:1], min_clients=1), "must endorse"),
    "an endorsement twice": (
        after(endorsements=[*ENDORSED, ENDORSED[0]]),
        "a client endorses its run's model once",
    ),
    "an endorsement of a stranger": (
        after(endorsements=[*ENDORSED, {**ENDORSED[0], "client": "client-9"}]),
        "client-9 was not in the predecessor's cohort",
    ),
    "a predecessor's client as two organisations": (
        after(
            cohort=[FORMER[0], {**FORMER[0], "organisation": "other"}], endorsements=ENDORSED[:1], min_clients=2
        ),
        "a client is in the predecessor's cohort once",
    ),
    "a predecessor that is no run": (after(run="../x"), "predecessor.run: "),
    "a short signature": (
        after(endorsements=[{**ENDORSED[0], "signature": "00"}]),
        "predecessor.endorsements.0.signature: ",
    ),
    "a predecessor of a cohort without end": (after(cohort=[FORMER[0]] * 5_000), "predecessor.cohort: "),
    "a cohort of names": ({"cohort": ["client-1", "client-2"]}, "cohort.0: "),
}


def test_what_cannot_be_a_run_is_refused_in_one_line(subtests: pytest.Subtests) -> None:
    for name, (changes, message) in REFUSED.items():
        with subtests.test(name):
            assert message in complaint(document(**changes))


def test_a_missing_field_is_named(subtests: pytest.Subtests) -> None:
    for field in sorted(name for name in VALID if Manifest.model_fields[name].is_required()):
        with subtests.test(field):
            text = json.dumps({name: value for name, value in VALID.items() if name != field})

            assert complaint(text) == f"this is not a manifest: {field}: Field required"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", b"\xff", '{"a": 1} x', b"[" * 10_000])
def test_what_is_not_a_json_object_is_refused(text: str | bytes) -> None:
    complaint(text)


def test_a_refusal_is_one_short_line_without_the_values() -> None:
    many = complaint(json.dumps({f"{'field' * 1000}\n{number}": 0 for number in range(1000)}))

    assert len(many) < 1_000
    assert "more" in many
    assert "a\\nb\\x1b: Extra inputs" in complaint(document(**{"a\nb\x1b": 1}))
    assert "swordfish" not in complaint(document(nonce="swordfish", rho="swordfish", cohort="swordfish"))


def test_a_proposal_with_a_huge_cohort_is_judged_quickly() -> None:
    cohort = [member(f"c{number}", "org") for number in range(50_000)]

    assert "stands for several" in complaint(document(cohort=[*cohort, cohort[0]]))


def test_a_manifest_does_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        make_manifest().rounds = 9  # type: ignore[misc] # that is the point


@pytest.mark.parametrize("chunk_bytes", [256, 8 << 20])
def test_every_chunk_size_that_is_allowed_can_be_cut_and_carried(chunk_bytes: int) -> None:
    manifest = make_manifest(chunk_bytes=chunk_bytes)

    assert plan_chunks([Vector("x", 1_000, 2**32)], manifest.chunk_bytes)
    assert manifest.chunk_bytes <= MAX_BODY_BYTES // 2


# Who takes part -----------------------------------------------------------------------------------------------


def test_the_default_of_min_clients_is_always_allowed_and_always_a_majority() -> None:
    expected = {2: 2, 3: 3, 4: 3, 5: 4, 6: 4, 7: 5, 9: 6, 10: 7, 100: 67}

    assert {organisations: default_min_clients(organisations) for organisations in expected} == expected
    for clients in (*range(2, 20), 99, 100):
        manifest = make_manifest(clients=clients, min_clients=default_min_clients(clients))
        assert 2 * manifest.min_clients > clients


def test_min_clients_counts_organisations() -> None:
    a, b, c = (
        CohortMember(name=PartyId(name), organisation=PartyId(organisation))
        for name, organisation in (("a", "north"), ("b", "north"), ("c", "south"))
    )
    manifest = make_manifest(cohort=(a, b, c), min_clients=2)

    assert manifest.clients == ("a", "b", "c")
    assert manifest.organisations == 2
    assert manifest.organisations_of(frozenset({a.name, b.name})) == 1
    assert manifest.organisations_of(frozenset({b.name, c.name})) == 2
    assert manifest.organisations_of(frozenset({PartyId("stranger")})) == 0
    with pytest.raises(ValidationError, match="between 2 and the 2 organisations"):
        make_manifest(cohort=(a, b, c), min_clients=3)


def test_the_protocols_parameters_are_the_manifests() -> None:
    parameters = make_manifest(clients=5, servers=3, rho=0.5, alpha_max=4.0).protocol_parameters

    assert (parameters.model_size, parameters.clients, parameters.servers) == (100, 5, 3)
    assert (parameters.rho, parameters.alpha_max, parameters.factor_bits) == (0.5, 4.0, 32)
    assert parameters.kept == 50
