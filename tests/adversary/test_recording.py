"""Everything that crosses the broker in a run, in the hands of whoever runs all but one of the aggregators.

The run is real and so are the keys that the eavesdropper is given: those of the coordinator and of all aggregators
but one. It opens what it was sent, and nothing else. That the tools would find more if there were more is shown
each time: with the last aggregator's key they read every client's signs, with a client's key the sums.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.crypto.sealing import CHUNK_OVERHEAD
from hubbub.ids import PartyId
from hubbub.protocol import signs
from hubbub.protocol.ring import Residues
from hubbub.runtime.state_folder import STATE_FILE
from hubbub.transport.base import Transport
from hubbub.transport.rabbitmq import RabbitMqTransport
from hubbub.transport.topology import Topology, merge, topology_for
from support.aio import bounded
from support.broker import declared
from support.eavesdropper import Eavesdropper, Loot, Search
from support.opposed_task import OpposedTask
from support.parties import parties_of
from support.recorded_run import (
    Recorded,
    Scenario,
    listen_to,
    look_for_shares,
)
from support.recorder import (
    DELIVER,
    PUBLISH,
    WireTap,
)
from support.statistics import against_each_other, against_uniform, bound, joint_counts
from support.thorough import part_of

TWO_PHASES = Scenario("sec-union", clients=3, servers=2, rounds=2)
SCENARIOS = (
    TWO_PHASES,
    Scenario("no-union", clients=5, servers=3, rounds=1),
    Scenario("partial-sec-union", clients=3, servers=2, rounds=1),
)


@pytest.fixture(scope="module", params=part_of(SCENARIOS, 0, 1), ids=str)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return asyncio.run(bounded(listen_to(request.param.draw_up(), tmp_path_factory.mktemp("run"))))


# The search itself ----------------------------------------------------------------------------------------

VECTOR = np.linspace(-0.3, 0.7, 40, dtype=np.float32)
SPARSE = np.array([0, 1, 0, 0, -1, 0, 1, 1] * 5, dtype=np.int8)
FORMS: dict[str, bytes] = {
    "raw": b"header" + VECTOR.tobytes(),
    "a piece": VECTOR.tobytes()[5:40],
    "hexadecimal": b'{"x":"' + VECTOR.tobytes().hex().encode() + b'"}',
    "hexadecimal, shifted": b'"f' + VECTOR.tobytes().hex().upper().encode(),
    "base64": b"token " + base64.b64encode(b"?" + VECTOR.tobytes()),
    "base64 for URLs": base64.urlsafe_b64encode(b"??" + VECTOR.tobytes()),
    "a printed byte string": repr(VECTOR.tobytes()).encode(),
    "a byte string in JSON": json.dumps({"message": repr(VECTOR.tobytes())}).encode(),
    "bytes as JSON characters": json.dumps(VECTOR.tobytes().decode("latin-1")).encode(),
    "a list": json.dumps(VECTOR.tolist()).encode(),
    "a printed array": repr(VECTOR).encode(),
    "a long array, printed": repr(np.concatenate([VECTOR, np.zeros(2_000, np.float32)])).encode(),
    "a digest": b"sha256=" + hashlib.sha256(VECTOR.tobytes()).hexdigest().encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_search_finds_a_vector_in_every_form(form: str) -> None:
    search = Search()
    search.add_vector("the vector", VECTOR)

    assert search.find(FORMS[form]) == {"the vector"}
    assert not search.find(FORMS[form][:12])


@pytest.mark.parametrize("text", [str(SPARSE.tolist()), repr(SPARSE), str(SPARSE.astype(np.int64))])
def test_the_search_finds_signs_in_a_text(text: str) -> None:
    search = Search()
    search.add_vector("the signs", SPARSE)

    assert search.find(text.encode()) == {"the signs"}


def test_the_search_finds_numbers_and_words_that_stand_alone() -> None:
    search = Search()
    search.add_number("the number", 1234567)
    search.add_word("the word", "open-sesame")

    assert search.find(b'{"factor":1234567}', b"amqp://me:open-sesame@broker/") == {"the number", "the word"}
    assert not search.find(b"a1234567b 12345678 0.1234567")


# The recording --------------------------------------------------------------------------------------------


def test_all_but_one_aggregator_open_their_own_shares_and_nothing_else(recorded: Recorded) -> None:
    for honest in recorded.manifest.aggregators:
        corrupt = recorded.all_but(honest)
        eavesdropper, loot = recorded.eavesdrop(*corrupt)

        assert loot == Loot(shares=recorded.shares_to(corrupt))
        assert {place.recipient for place in loot.shares} == set(corrupt)
        assert {place.recipient for place in eavesdropper.sealed.shares} == {honest, *corrupt}
        assert eavesdropper.rebuild_inputs(loot) == {}
        assert eavesdropper.rebuild_sums(loot) == {}


def test_all_that_is_readable_holds_no_plaintext(recorded: Recorded) -> None:
    assert recorded.find_in(*recorded.frames) == set()


def test_what_all_but_one_aggregator_opened_holds_no_input_no_sum_and_none_of_its_shares(
    recorded: Recorded,
) -> None:
    for honest in recorded.manifest.aggregators:
        _, loot = recorded.eavesdrop(*recorded.all_but(honest))
        opened = list(loot.everything())

        assert recorded.inputs_and_sums.find(*opened) == set()
        assert look_for_shares(recorded, [honest]).find(*opened) == set()
        assert recorded.shares.find(*opened), "the search would know a share"


def test_with_the_last_aggregators_key_every_input_is_read(recorded: Recorded) -> None:
    """The control: what the others lack is this one key."""
    manifest, witness = recorded.manifest, recorded.witness
    eavesdropper, loot = recorded.eavesdrop(*manifest.aggregators)

    inputs = eavesdropper.rebuild_inputs(loot)

    assert inputs.keys() == witness.said.keys()
    for key, values in inputs.items():
        assert all(map(np.array_equal, values, witness.said[key].values)), key
    for (client, number), truth in witness.signs_of.items():
        read = signs.from_ring(inputs[client, number, "signs"][0], len(manifest.cohort))
        everywhere = np.arange(truth.size)
        support = everywhere if manifest.strategy == "no-union" else indices_of_union(recorded, number)
        assert np.array_equal(read, truth[support])
        assert read.any()


def indices_of_union(recorded: Recorded, number: int) -> NDArray[np.int64]:
    total, *_ = recorded.witness.add_up(recorded.manifest.clients, number, "union")
    return np.flatnonzero(total)


def test_with_a_clients_key_the_sums_are_read_and_no_input(recorded: Recorded) -> None:
    """A client may know the sums; beside them it is given the other clients' parts of the group secret."""
    manifest, witness = recorded.manifest, recorded.witness
    for client in manifest.clients[:2]:
        eavesdropper, loot = recorded.eavesdrop(client)
        sums = eavesdropper.rebuild_sums(loot)

        assert loot.sums == witness.sums
        assert sums.keys() == {(number, phase) for _, number, phase in witness.said}
        for (number, phase), values in sums.items():
            assert all(map(np.array_equal, values, witness.add_up(manifest.clients, number, phase)))
        assert {place.recipient for place in loot.sum_keys} == {client}
        assert loot.contributions == {
            place: part for place, part in witness.contributions.items() if place.recipient == client
        }
        assert loot.shares == {}
        assert loot.elsewhere == []
        found = recorded.inputs_and_sums.find(*loot.everything())
        assert all(name.startswith(("sum ", "contribution ")) for name in found), found


def test_no_two_ciphertexts_are_made_with_the_same_keystream(recorded: Recorded) -> None:
    """Or the difference of two plaintexts could be read without any key."""
    eavesdropper, _ = recorded.eavesdrop()
    sealed = {**eavesdropper.sealed.shares, **eavesdropper.sealed.sums}
    plain = {**recorded.witness.shares, **recorded.witness.sums}
    streams = []
    for place, each in sealed.items():
        text = plain[place]
        covered = each.ciphertext[-len(text) - CHUNK_OVERHEAD : -CHUNK_OVERHEAD]
        streams.append(bytes(a ^ b for a, b in zip(covered[:16], text[:16], strict=True)))

    assert plain.keys() == sealed.keys()
    assert len(set(streams)) == len(streams)


# Beside the broker ----------------------------------------------------------------------------------------


def test_logs_metrics_and_events_tell_no_plaintext(recorded: Recorded) -> None:
    ears, run = recorded.ears, recorded.manifest.run_id
    told = {
        "logs": (ears.logs.getvalue(), f'"run": "{run}"'),
        "metrics": (ears.metrics, 'hubbub_messages_received_total{kind="sum-chunk"}'),
        "events": ("\n".join(ears.moments), "Concluded("),
    }

    for what, (text, known) in told.items():
        assert known in text, what
        assert "array(" not in text, what
        assert recorded.find_in(text.encode()) == set(), what


def test_the_interface_tells_no_plaintext_at_any_time_of_a_run(recorded: Recorded) -> None:
    """Every route that reads, exports and metrics in all their forms, and the stream: all that is on the wire."""
    api_reader, run = recorded.api_reader, recorded.manifest.run_id.encode()
    told = list(api_reader.everything())

    assert recorded.find_in(*told) == set()
    assert look_for_passwords(recorded).find(*told) == set()
    assert not any(b"array(" in each for each in told)
    # Or else this test looks at nothing: all was answered, also while the run went on, and the stream to its end.
    assert all(200 in statuses for statuses in api_reader.statuses.values()), api_reader.statuses
    assert run in b"".join(api_reader.answers["/api/v1/runs/{run}/export"])
    assert {b'"state":"running"', b'"state":"completed"'} <= {
        state
        for answer in api_reader.answers["/api/v1/runs/{run}"]
        for state in re.findall(rb'"state":"[a-z]+"', answer)
    }
    assert all(b"event: " + kind in api_reader.stream for kind in (b"sum-released", b"run-completed"))


def look_for_passwords(recorded: Recorded) -> Search:
    """What stands in the roster of the broker's passwords, salts before all, is not for the interface to show."""
    search = Search()
    for party, identity in recorded.parties.identities.items():
        salted = identity.public().broker_password_hash
        search.add_word(f"salted password of {party}", salted)
        search.add_bytes(f"salted password of {party}", base64.b64decode(salted))
    return search


def test_the_pages_are_the_same_before_a_run_and_after_it(recorded: Recorded) -> None:
    """They and their libraries hold nothing of any run: a page asks the interface like everybody else."""
    pages = recorded.api_reader.pages

    assert {"/", "/docs"} < pages.keys()
    for path, (before, after) in pages.items():
        assert before, path
        assert before == after, path


def test_the_disks_of_coordinator_and_aggregators_hold_no_plaintext(recorded: Recorded) -> None:
    manifest, ears = recorded.manifest, recorded.ears

    for name in (manifest.coordinator, *manifest.aggregators):
        assert ears.disk[name], name
        assert recorded.find_in(*ears.disk[name].values(), *ears.spooled_by(name)) == set(), name
        assert recorded.find_in(*ears.at_the_end[name].values()) == set(), f"{name} ran on after the run"
    assert "a model" in recorded.find_in(*ears.disk[manifest.clients[0]].values()), "where it belongs"


def test_while_a_run_lasts_an_aggregator_keeps_its_own_keys_in_its_state_and_nothing_else(
    recorded: Recorded,
) -> None:
    manifest, past = recorded.manifest, recorded.ears.past

    for name in manifest.aggregators:
        files = past[name].items()
        own = {f"run key of {name}", *(each for each in recorded.witness.secrets if f"sum key of {name}," in each)}
        in_state = [data for path, all_data in files if path.name.startswith(STATE_FILE) for data in all_data]
        elsewhere = [data for path, all_data in files if not path.name.startswith(STATE_FILE) for data in all_data]
        found = recorded.find_in(*in_state)
        assert f"run key of {name}" in found, "or else this test looks in the wrong place"
        assert found <= own
        assert recorded.find_in(*elsewhere) == set()
    everything = [data for all_data in past[manifest.coordinator].values() for data in all_data]
    assert recorded.find_in(*everything) == set()


def test_aggregators_spool_shares_as_they_came_sealed(recorded: Recorded) -> None:
    eavesdropper, _ = recorded.eavesdrop()
    sealed = {each.ciphertext for each in eavesdropper.sealed.shares.values()}

    assert recorded.ears.spooled_by(*recorded.manifest.aggregators) == sealed


# Shares of different inputs -------------------------------------------------------------------------------


async def test_shares_of_opposite_inputs_look_alike(tmp_path: Path) -> None:
    """The first two clients choose the same half of all indices, with opposite signs.

    Of their shares any S - 1 are uniform, together, where the inputs differ most; all S together are not.
    """
    task = OpposedTask(6_001)
    manifest = Scenario("no-union", clients=3, servers=3, rounds=1).draw_up(task, rho=0.5, chunk_bytes=4_096)
    recorded = await listen_to(manifest, tmp_path, task=task)
    chosen = np.flatnonzero(recorded.witness.signs_of[manifest.clients[0], 1])
    modulus = manifest.protocol_parameters.signs_modulus

    def read(eavesdropper: Eavesdropper, loot: Loot, client: PartyId) -> list[Residues]:
        shares = eavesdropper.read_shares(loot, client, 1, "signs")
        return [signs_share[chosen] for signs_share, *_ in shares.values()]

    for honest in manifest.aggregators:
        attack = recorded.eavesdrop(*recorded.all_but(honest))
        first, second = (joint_counts(read(*attack, client), modulus) for client in manifest.clients[:2])
        limit = bound(modulus ** len(recorded.all_but(honest)))
        assert against_uniform(first) < limit
        assert against_uniform(second) < limit
        assert against_each_other(first, second) < limit
    attack = recorded.eavesdrop(*manifest.aggregators)
    first, second = (joint_counts(read(*attack, client), modulus) for client in manifest.clients[:2])
    limit = bound(modulus ** len(manifest.aggregators))
    assert min(against_uniform(first), against_uniform(second), against_each_other(first, second)) > limit


# The bytes on the wire ------------------------------------------------------------------------------------


@pytest.mark.broker
async def test_every_byte_between_the_parties_and_a_real_broker(tmp_path: Path, amqp_url: str) -> None:
    """Both directions of all connections, without TLS: what the broker's operator and the network see."""
    manifest, url = TWO_PHASES.draw_up(), urlsplit(amqp_url)
    credentials = url.netloc.rpartition("@")[0]
    parties = parties_of(manifest)
    everything = merge(topology_for(each.name, each.role) for each in parties.identities.values())
    async with declared(amqp_url, everything), WireTap(url.hostname or "127.0.0.1", url.port or 5672) as tap:
        tapped = url._replace(netloc=f"{credentials}@127.0.0.1:{tap.port}").geturl()

        def connect(name: PartyId, topology: Topology) -> Transport:
            return RabbitMqTransport(tapped, topology, connection_name=name)

        recorded = await listen_to(manifest, tmp_path, connect=connect)
    published, delivered = tap.read(PUBLISH), tap.read(DELIVER)

    assert len(tap.streams) == 4 * len(parties.identities)
    assert set(published) == set(recorded.recording)
    assert set(delivered) <= set(published)
    assert recorded.find_in(*map(bytes, tap.streams)) == set()
    for honest in manifest.aggregators:
        corrupt = recorded.all_but(honest)
        _, loot = replace(recorded, recording=published).eavesdrop(*corrupt)
        assert loot == Loot(shares=recorded.shares_to(corrupt))
