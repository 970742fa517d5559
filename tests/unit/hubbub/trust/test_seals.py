"""Seals open in their own place and for their own reader, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ParamSpec

import pytest

from hubbub.crypto.sealing import ChunkKey, Kem, SealingKey, seal_overhead, share_overhead
from hubbub.errors import LocalError, PeerError, RejectReason
from hubbub.ids import PartyId, RunId, SetId
from hubbub.trust.seals import RunSeals, Stage, derive_share_key, draw_run_key, read_run_key
from hubbub.trust.signed import check_run_key
from support.builders import SET_ID, make_manifest
from support.parties import identity_of, parties_of, seals_of
from support.sealed_shares import open_share, seal_share

P = ParamSpec("P")

MANIFEST = make_manifest()
CLIENT, OTHER_CLIENT, _ = MANIFEST.clients
AGGREGATOR, OTHER_AGGREGATOR = MANIFEST.aggregators
EVERYBODY = {*MANIFEST.clients, *MANIFEST.aggregators}
STAGE = Stage(MANIFEST.run_id, 3, "signs")
OTHER_RUN = make_manifest(seed=8).run_id
OTHER_SET = SetId("5f" * 16)
SECRET = b"a packed share, a sum or a key !"

SEALS = {kem: seals_of(MANIFEST, kem) for kem in Kem}
both_kems = pytest.mark.parametrize("kem", Kem)


def check_broken(open_it: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    with pytest.raises(PeerError) as caught:
        open_it(*args, **kwargs)
    assert caught.value.reason is RejectReason.BROKEN_SEAL


def fresh_seals(kem: Kem = Kem.X25519, party: PartyId = CLIENT, run: RunId = MANIFEST.run_id) -> RunSeals:
    return RunSeals(identity_of(MANIFEST, party), run, SealingKey.generate(kem))


@both_kems
def test_a_run_key_that_was_kept_gives_the_same_valid_claim_and_opens_what_was_sealed_to_it(kem: Kem) -> None:
    key, roster = draw_run_key(kem), parties_of(MANIFEST, kem).roster
    before = RunSeals(identity_of(MANIFEST, OTHER_CLIENT), MANIFEST.run_id, key)
    sender = fresh_seals(kem)
    sender.accept({OTHER_CLIENT: check_run_key(roster, MANIFEST.run_id, before.claim)})
    sealed = sender.seal_contribution(OTHER_CLIENT, SECRET)

    after = RunSeals(identity_of(MANIFEST, OTHER_CLIENT), MANIFEST.run_id, read_run_key(kem, key.to_bytes()))

    assert after.claim == before.claim
    assert after.open_contribution(CLIENT, sealed) == SECRET


def test_a_run_has_one_key_of_each_party() -> None:
    seals = fresh_seals()
    publics = {AGGREGATOR: b"a" * 32}
    seals.accept(publics)
    seals.accept({AGGREGATOR: b"a" * 32})
    publics[AGGREGATOR] = b"b" * 32

    for others in (publics, {AGGREGATOR: b"a" * 32, CLIENT: b"c" * 32}, {}):
        with pytest.raises(LocalError, match="one key of each party"):
            seals.accept(others)
    assert seals.public(AGGREGATOR) == b"a" * 32


# Every kind of seal ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Place that a ciphertext is opened at; a kind of seal is bound to some of it."""

    sender: PartyId
    stage: Stage = STAGE
    set_id: SetId = SET_ID
    chunk: int = 2


ELSEWHERE: dict[str, Callable[[Place], Place]] = {
    "run": lambda place: replace(place, stage=replace(STAGE, run=OTHER_RUN)),
    "round": lambda place: replace(place, stage=replace(STAGE, round=4)),
    "phase": lambda place: replace(place, stage=replace(STAGE, phase="union")),
    "set": lambda place: replace(place, set_id=OTHER_SET),
    "chunk": lambda place: replace(place, chunk=1),
}


@dataclass(frozen=True)
class Kind:
    """A kind of seal: who seals it to whom, and which parts of its place are bound into it."""

    sender: PartyId
    reader: PartyId
    bound: str
    seal: Callable[[RunSeals, PartyId], bytes]
    open: Callable[[RunSeals, Place, bytes], bytes]
    overhead: Callable[[Kem], int] = seal_overhead


KINDS = {
    "share": Kind(
        CLIENT,
        AGGREGATOR,
        "run round phase set chunk",
        lambda seals, to: seal_share(seals, STAGE, to, SET_ID, 2, SECRET),
        lambda seals, at, sealed: open_share(seals, at.stage, at.sender, at.set_id, at.chunk, sealed),
        share_overhead,
    ),
    "seed": Kind(
        CLIENT,
        AGGREGATOR,
        "run round phase set",
        lambda seals, to: seals.seal_seed(STAGE, to, SET_ID, SECRET),
        lambda seals, at, sealed: seals.open_seed(at.stage, at.sender, at.set_id, sealed),
    ),
    "partial sum": Kind(
        AGGREGATOR,
        OTHER_AGGREGATOR,
        "run round phase chunk",
        lambda seals, to: seals.seal_partial(STAGE, to, 2, SECRET),
        lambda seals, at, sealed: seals.open_partial(at.stage, at.sender, at.chunk, sealed),
    ),
    "sum key": Kind(
        AGGREGATOR,
        CLIENT,
        "run round phase",
        lambda seals, to: seals.wrap_sum_key(STAGE, to, ChunkKey(SECRET)),
        lambda seals, at, sealed: seals.unwrap_sum_key(at.stage, at.sender, sealed).to_bytes(),
    ),
    "contribution": Kind(
        CLIENT,
        OTHER_CLIENT,
        "",
        lambda seals, to: seals.seal_contribution(to, SECRET),
        lambda seals, at, sealed: seals.open_contribution(at.sender, sealed),
    ),
    "snapshot": Kind(
        CLIENT,
        OTHER_CLIENT,
        "round chunk",
        lambda seals, to: seals.seal_snapshot(3, to, 2, SECRET),
        lambda seals, at, sealed: seals.open_snapshot(at.stage.round, at.sender, at.chunk, sealed),
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@both_kems
@every_kind
def test_a_seal_opens_in_its_place_and_nowhere_else(kem: Kem, kind: Kind) -> None:
    seals, place = SEALS[kem], Place(kind.sender)
    sealed = kind.seal(seals[kind.sender], kind.reader)

    assert kind.open(seals[kind.reader], place, sealed) == SECRET
    assert SECRET not in sealed
    assert len(sealed) == len(SECRET) + kind.overhead(kem)
    for part in kind.bound.split():
        check_broken(kind.open, seals[kind.reader], ELSEWHERE[part](place), sealed)
    for sender in EVERYBODY - {kind.sender}:
        check_broken(kind.open, seals[kind.reader], Place(sender), sealed)
    for reader in EVERYBODY - {kind.reader}:
        check_broken(kind.open, seals[reader], place, sealed)


@every_kind
def test_a_seal_names_run_and_recipient_and_not_only_their_keys(kind: Kind) -> None:
    place, reader = Place(kind.sender), SEALS[Kem.X25519][kind.reader]
    public = reader.public(kind.reader)
    other = min(EVERYBODY - {kind.sender, kind.reader})
    for run in (MANIFEST.run_id, OTHER_RUN):
        seals = fresh_seals(party=kind.sender, run=run)
        seals.accept({kind.reader: public, other: public})
        check_broken(kind.open, reader, place, kind.seal(seals, other))
        if run == OTHER_RUN and "run" not in kind.bound:
            check_broken(kind.open, reader, place, kind.seal(seals, kind.reader))


@every_kind
def test_a_seal_is_broken_by_another_run_key_or_a_flipped_bit_and_other_bytes_are_none(kind: Kind) -> None:
    reader, place = SEALS[Kem.X25519][kind.reader], Place(kind.sender)
    sealed = kind.seal(SEALS[Kem.X25519][kind.sender], kind.reader)

    check_broken(kind.open, seals_of(MANIFEST)[kind.reader], place, sealed)
    for position in range(len(sealed)):
        damaged = bytearray(sealed)
        damaged[position] ^= 1
        check_broken(kind.open, reader, place, bytes(damaged))
    for noise in (b"", b"short", bytes(200)):
        check_broken(kind.open, reader, place, noise)


def test_what_was_sealed_as_one_thing_does_not_open_as_another() -> None:
    """The kinds of seal are told apart even where everything else about them is the same."""
    seals = fresh_seals()
    seals.accept({CLIENT: bytes.fromhex(seals.claim.public_key)})
    for name, kind in KINDS.items():
        sealed = kind.seal(seals, CLIENT)
        assert kind.open(seals, Place(CLIENT), sealed) == SECRET
        for other in KINDS.keys() - {name}:
            check_broken(KINDS[other].open, seals, Place(CLIENT), sealed)


# Keys of chunks -------------------------------------------------------------------------------------------


def test_a_share_that_is_moved_elsewhere_does_not_open_though_its_key_is_known() -> None:
    """What is bound to a chunk is its whole place, and not only what is bound to the key."""
    key = SEALS[Kem.X25519][CLIENT].make_share_key(STAGE, AGGREGATOR, SET_ID, ChunkKey.fresh())
    payload = key.seal(2, SECRET)
    assert bytes(key.open(2, payload)) == SECRET

    for stage in (replace(STAGE, run=OTHER_RUN), replace(STAGE, round=4), replace(STAGE, phase="union")):
        check_broken(replace(key, stage=stage).open, 2, payload)
    check_broken(replace(key, sender=OTHER_CLIENT).open, 2, payload)
    check_broken(replace(key, recipient=OTHER_AGGREGATOR).open, 2, payload)
    check_broken(replace(key, set_id=OTHER_SET).open, 2, payload)
    for chunk in (1, 3):
        check_broken(key.open, chunk, payload)


@both_kems
def test_chunks_of_a_set_travel_with_one_key(kem: Kem) -> None:
    sent = SEALS[kem][CLIENT].make_share_key(STAGE, AGGREGATOR, SET_ID, ChunkKey.fresh())
    payloads = [sent.seal(chunk, SECRET * chunk) for chunk in range(3)]

    got = SEALS[kem][AGGREGATOR].open_share_key(STAGE, CLIENT, SET_ID, payloads[1])

    opened = [bytes(got.open(chunk, payload)) for chunk, payload in enumerate(payloads)]
    assert opened == [b"", SECRET, SECRET * 2]
    assert all(got.opens(SET_ID, payload) for payload in payloads)
    assert not got.opens(OTHER_SET, payloads[0])
    assert not got.opens(SET_ID, KINDS["share"].seal(SEALS[kem][CLIENT], AGGREGATOR))
    with pytest.raises(LocalError, match="chunk 2 was encrypted already"):
        sent.seal(2, bytes(5))


def test_each_aggregator_and_each_phase_has_a_key_of_its_own() -> None:
    stages = [STAGE, *(ELSEWHERE[part](Place(CLIENT)).stage for part in ("run", "round", "phase"))]
    keys = [derive_share_key(stage, bytes(32), AGGREGATOR) for stage in stages]
    keys += [derive_share_key(STAGE, bytes(32), OTHER_AGGREGATOR), derive_share_key(STAGE, b"1" * 32, AGGREGATOR)]

    assert len({key.to_bytes() for key in keys}) == len(keys)
    assert derive_share_key(STAGE, bytes(32), AGGREGATOR).to_bytes() == keys[0].to_bytes()


@both_kems
def test_one_ciphertext_of_a_sum_opens_at_every_client_and_in_its_place_alone(kem: Kem) -> None:
    key, seals = ChunkKey.fresh(), SEALS[kem]
    chunk = seals[AGGREGATOR].encrypt_sum(STAGE, key, 2, SECRET)

    for client in MANIFEST.clients:
        wrapped = seals[AGGREGATOR].wrap_sum_key(STAGE, client, key)
        opened = seals[client].unwrap_sum_key(STAGE, AGGREGATOR, wrapped)
        assert bytes(seals[client].decrypt_sum(STAGE, AGGREGATOR, opened, 2, chunk)) == SECRET
    assert SECRET not in chunk
    for part in ("run", "round", "phase", "chunk"):
        at = ELSEWHERE[part](Place(AGGREGATOR))
        check_broken(RunSeals.decrypt_sum, at.stage, AGGREGATOR, key, at.chunk, chunk)
    check_broken(RunSeals.decrypt_sum, STAGE, OTHER_AGGREGATOR, key, 2, chunk)
    check_broken(RunSeals.decrypt_sum, STAGE, AGGREGATOR, ChunkKey.fresh(), 2, chunk)
