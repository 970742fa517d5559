"""What is sealed opens in its own place and for its own reader, and nowhere else."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ParamSpec

import pytest

from hubbub.crypto.sealing import ChunkKey, Kem, SealingKey, seal_overhead, share_overhead
from hubbub.errors import LocalError, PeerError, RejectReason
from hubbub.ids import PartyId, SetId
from hubbub.trust.seals import RunSeals, Stage, derive_share_key
from hubbub.trust.signed import check_run_key
from support.builders import SET_ID, make_manifest
from support.parties import identity_of, parties_of, seals_of
from support.sealed_shares import open_share, seal_share

P = ParamSpec("P")

MANIFEST = make_manifest()
CLIENT, OTHER_CLIENT, _ = MANIFEST.clients
AGGREGATOR, OTHER_AGGREGATOR = MANIFEST.aggregators
STAGE = Stage(MANIFEST.run_id, 3, "signs")
OTHER_STAGES = {
    "another run": replace(STAGE, run=make_manifest(seed=8).run_id),
    "another round": replace(STAGE, round=4),
    "another phase": replace(STAGE, phase="union"),
}
SECRET = b"a packed share or sum"

SEALS = {kem: seals_of(MANIFEST, kem) for kem in Kem}
both_kems = pytest.mark.parametrize("kem", Kem)


def check_broken(open_it: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    with pytest.raises(PeerError) as caught:
        open_it(*args, **kwargs)
    assert caught.value.reason is RejectReason.BROKEN_SEAL


def fresh_seals() -> RunSeals:
    return RunSeals(identity_of(MANIFEST, CLIENT), MANIFEST.run_id, SealingKey.generate(Kem.X25519))


def test_a_run_key_vouches_for_the_key_that_opens() -> None:
    for kem, seals in SEALS.items():
        roster = parties_of(MANIFEST, kem).roster
        for name, each in seals.items():
            assert check_run_key(roster, MANIFEST.run_id, each.claim) == seals[CLIENT].public(name)


@both_kems
def test_a_key_that_was_kept_gives_the_same_claim_and_opens_what_was_sealed_to_it(kem: Kem) -> None:
    key = SealingKey.generate(kem)
    before = RunSeals(identity_of(MANIFEST, OTHER_CLIENT), MANIFEST.run_id, key)
    sender = RunSeals(identity_of(MANIFEST, CLIENT), MANIFEST.run_id, SealingKey.generate(kem))
    sender.accept({OTHER_CLIENT: bytes.fromhex(before.claim.public_key)})
    sealed = sender.seal_contribution(OTHER_CLIENT, SECRET)

    kept = SealingKey.from_bytes(kem, key.to_bytes())
    after = RunSeals(identity_of(MANIFEST, OTHER_CLIENT), MANIFEST.run_id, kept)

    assert after.claim == before.claim
    assert after.open_contribution(CLIENT, sealed) == SECRET


def test_a_run_has_one_key_of_each_party() -> None:
    seals = fresh_seals()
    seals.accept({AGGREGATOR: b"a" * 32})
    seals.accept({AGGREGATOR: b"a" * 32})

    for others in ({AGGREGATOR: b"b" * 32}, {AGGREGATOR: b"a" * 32, CLIENT: b"c" * 32}, {}):
        with pytest.raises(LocalError, match="one key of each party"):
            seals.accept(others)
    assert seals.public(AGGREGATOR) == b"a" * 32


def test_what_was_accepted_does_not_follow_the_callers_mapping() -> None:
    seals = fresh_seals()
    publics = {AGGREGATOR: b"a" * 32}
    seals.accept(publics)
    publics[AGGREGATOR] = b"b" * 32

    assert seals.public(AGGREGATOR) == b"a" * 32


# Shares ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SharePlace:
    """Where a share's chunk belongs."""

    stage: Stage = STAGE
    sender: PartyId = CLIENT
    set_id: SetId = SET_ID
    chunk: int = 2

    def open(self, seals: RunSeals, sealed: bytes) -> bytes:
        return open_share(seals, self.stage, self.sender, self.set_id, self.chunk, sealed)


def sealed_share(kem: Kem) -> bytes:
    return seal_share(SEALS[kem][CLIENT], STAGE, AGGREGATOR, SET_ID, 2, SECRET)


@both_kems
def test_a_share_opens_at_its_aggregator(kem: Kem) -> None:
    sealed = sealed_share(kem)

    assert SharePlace().open(SEALS[kem][AGGREGATOR], sealed) == SECRET
    assert SECRET not in sealed
    assert len(sealed) == len(SECRET) + share_overhead(kem)


ELSEWHERE = {
    **{name: SharePlace(stage=stage) for name, stage in OTHER_STAGES.items()},
    "another sender": SharePlace(sender=OTHER_CLIENT),
    "the recipient as sender": SharePlace(sender=AGGREGATOR),
    "another set": SharePlace(set_id=SetId("5f" * 16)),
    "the chunk before": SharePlace(chunk=1),
    "the chunk after": SharePlace(chunk=3),
}


@both_kems
def test_a_share_that_is_moved_elsewhere_does_not_open(subtests: pytest.Subtests, kem: Kem) -> None:
    for name, place in ELSEWHERE.items():
        with subtests.test(name):
            check_broken(place.open, SEALS[kem][AGGREGATOR], sealed_share(kem))


@both_kems
@pytest.mark.parametrize("reader", [OTHER_AGGREGATOR, CLIENT, OTHER_CLIENT])
def test_nobody_else_opens_a_share(kem: Kem, reader: PartyId) -> None:
    check_broken(SharePlace().open, SEALS[kem][reader], sealed_share(kem))


def test_a_share_that_was_sealed_to_another_aggregator_is_not_taken_by_one_who_has_its_key() -> None:
    """The recipient's name is in the seal too, and not only its key."""
    seals = fresh_seals()
    public = SEALS[Kem.X25519][CLIENT].public(AGGREGATOR)
    seals.accept({AGGREGATOR: public, OTHER_AGGREGATOR: public})
    sealed = seal_share(seals, STAGE, OTHER_AGGREGATOR, SET_ID, 2, SECRET)

    check_broken(SharePlace().open, SEALS[Kem.X25519][AGGREGATOR], sealed)


ELSEWHERE_UNDER_THE_KEY: dict[str, dict[str, object]] = {
    **{name: {"stage": stage} for name, stage in OTHER_STAGES.items()},
    "another sender": {"sender": OTHER_CLIENT},
    "another recipient": {"recipient": OTHER_AGGREGATOR},
    "another set": {"set_id": SetId("5f" * 16)},
}


@pytest.mark.parametrize("place", ELSEWHERE_UNDER_THE_KEY.values(), ids=ELSEWHERE_UNDER_THE_KEY)
def test_a_share_that_is_moved_elsewhere_does_not_open_though_its_key_is_known(place: dict[str, object]) -> None:
    """What is bound to a chunk is its whole place, and not only what is bound to the key."""
    key = SEALS[Kem.X25519][CLIENT].make_share_key(STAGE, AGGREGATOR, SET_ID, ChunkKey.fresh())
    payload = key.seal(2, SECRET)
    assert bytes(key.open(2, payload)) == SECRET

    check_broken(replace(key, **place).open, 2, payload)  # type: ignore[arg-type] # fields of several types
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
    assert not got.opens(SetId("5f" * 16), payloads[0])
    assert not got.opens(SET_ID, sealed_share(kem))
    with pytest.raises(LocalError, match="chunk 2 was encrypted already"):
        sent.seal(2, bytes(5))


def test_each_aggregator_and_each_phase_has_a_key_of_its_own() -> None:
    keys = [derive_share_key(stage, bytes(32), AGGREGATOR) for stage in (STAGE, *OTHER_STAGES.values())]
    keys += [derive_share_key(STAGE, bytes(32), OTHER_AGGREGATOR), derive_share_key(STAGE, b"1" * 32, AGGREGATOR)]

    assert len({key.to_bytes() for key in keys}) == len(keys)
    assert derive_share_key(STAGE, bytes(32), AGGREGATOR).to_bytes() == keys[0].to_bytes()


def test_a_share_of_an_earlier_key_does_not_open() -> None:
    """Not even if everything that the seal says is the same: the run's key is another."""
    again = seals_of(MANIFEST)

    check_broken(SharePlace().open, again[AGGREGATOR], sealed_share(Kem.X25519))


def test_a_share_with_a_flipped_bit_does_not_open() -> None:
    sealed = sealed_share(Kem.X25519)
    for place in range(len(sealed)):
        damaged = bytearray(sealed)
        damaged[place] ^= 1
        check_broken(SharePlace().open, SEALS[Kem.X25519][AGGREGATOR], bytes(damaged))


@pytest.mark.parametrize("sealed", [b"", b"short", bytes(200)])
def test_bytes_that_are_no_seal_are_a_broken_one(sealed: bytes) -> None:
    check_broken(SharePlace().open, SEALS[Kem.X25519][AGGREGATOR], sealed)


# Sums -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sum:
    """An aggregator's release, as one client gets it."""

    wrapped: bytes
    chunk: bytes


def release(kem: Kem, sender: PartyId = AGGREGATOR) -> Sum:
    """Chunk 2 of a sum, and its key for CLIENT."""
    key, seals = ChunkKey.fresh(), SEALS[kem][sender]
    return Sum(seals.wrap_sum_key(STAGE, CLIENT, key), seals.encrypt_sum(STAGE, key, 2, SECRET))


@both_kems
def test_a_sum_opens_at_every_client_from_one_ciphertext(kem: Kem) -> None:
    key, seals = ChunkKey.fresh(), SEALS[kem]
    chunk = seals[AGGREGATOR].encrypt_sum(STAGE, key, 2, SECRET)

    for client in MANIFEST.clients:
        wrapped = seals[AGGREGATOR].wrap_sum_key(STAGE, client, key)
        opened = seals[client].unwrap_sum_key(STAGE, AGGREGATOR, wrapped)
        assert bytes(seals[client].decrypt_sum(STAGE, AGGREGATOR, opened, 2, chunk)) == SECRET
        assert key.to_bytes() not in wrapped
    assert SECRET not in chunk


@both_kems
@pytest.mark.parametrize("stage", OTHER_STAGES.values(), ids=OTHER_STAGES)
def test_a_sums_key_that_is_moved_elsewhere_does_not_open(kem: Kem, stage: Stage) -> None:
    check_broken(SEALS[kem][CLIENT].unwrap_sum_key, stage, AGGREGATOR, release(kem).wrapped)


@both_kems
def test_a_sums_key_is_its_senders_and_its_recipients(kem: Kem) -> None:
    wrapped = release(kem).wrapped

    check_broken(SEALS[kem][CLIENT].unwrap_sum_key, STAGE, OTHER_AGGREGATOR, wrapped)
    for reader in (OTHER_CLIENT, AGGREGATOR, OTHER_AGGREGATOR):
        check_broken(SEALS[kem][reader].unwrap_sum_key, STAGE, AGGREGATOR, wrapped)


@pytest.mark.parametrize(
    ("stage", "sender", "chunk"),
    [
        *((stage, AGGREGATOR, 2) for stage in OTHER_STAGES.values()),
        (STAGE, OTHER_AGGREGATOR, 2),
        (STAGE, AGGREGATOR, 1),
        (STAGE, AGGREGATOR, 3),
    ],
    ids=[*OTHER_STAGES, "another sender", "the chunk before", "the chunk after"],
)
def test_a_sums_chunk_that_is_moved_elsewhere_does_not_open(stage: Stage, sender: PartyId, chunk: int) -> None:
    """The key is in hand; the place is not the chunk's own."""
    seals, given = SEALS[Kem.X25519][CLIENT], release(Kem.X25519)
    key = seals.unwrap_sum_key(STAGE, AGGREGATOR, given.wrapped)
    assert bytes(seals.decrypt_sum(STAGE, AGGREGATOR, key, 2, given.chunk)) == SECRET

    check_broken(seals.decrypt_sum, stage, sender, key, chunk, given.chunk)


def test_a_sum_does_not_open_with_the_key_of_another() -> None:
    seals, first, second = SEALS[Kem.X25519][CLIENT], release(Kem.X25519), release(Kem.X25519)
    key = seals.unwrap_sum_key(STAGE, AGGREGATOR, second.wrapped)

    check_broken(seals.decrypt_sum, STAGE, AGGREGATOR, key, 2, first.chunk)


# Contributions to the group secret ------------------------------------------------------------------------


@both_kems
def test_a_contribution_opens_at_the_client_that_it_is_for(kem: Kem) -> None:
    sealed = SEALS[kem][CLIENT].seal_contribution(OTHER_CLIENT, SECRET)

    assert SEALS[kem][OTHER_CLIENT].open_contribution(CLIENT, sealed) == SECRET


@both_kems
def test_a_contribution_is_its_senders_and_its_recipients(kem: Kem) -> None:
    sealed = SEALS[kem][CLIENT].seal_contribution(OTHER_CLIENT, SECRET)

    for sender in (OTHER_CLIENT, MANIFEST.clients[2], AGGREGATOR):
        check_broken(SEALS[kem][OTHER_CLIENT].open_contribution, sender, sealed)
    for reader in (CLIENT, MANIFEST.clients[2], AGGREGATOR):
        check_broken(SEALS[kem][reader].open_contribution, CLIENT, sealed)


@both_kems
def test_a_contribution_to_another_run_does_not_open(kem: Kem) -> None:
    """Also if the recipient's key were the same in both, which it never is."""
    other_run = RunSeals(identity_of(MANIFEST, CLIENT), make_manifest(seed=8).run_id, SealingKey.generate(kem))
    other_run.accept({OTHER_CLIENT: SEALS[kem][CLIENT].public(OTHER_CLIENT)})

    sealed = other_run.seal_contribution(OTHER_CLIENT, SECRET)

    check_broken(SEALS[kem][OTHER_CLIENT].open_contribution, CLIENT, sealed)


# Snapshots ------------------------------------------------------------------------------------------------


@both_kems
def test_a_snapshot_opens_at_the_client_that_it_is_for(kem: Kem) -> None:
    sealed = SEALS[kem][CLIENT].seal_snapshot(3, OTHER_CLIENT, 2, SECRET)

    assert SEALS[kem][OTHER_CLIENT].open_snapshot(3, CLIENT, 2, sealed) == SECRET
    assert SECRET not in sealed
    assert len(sealed) == len(SECRET) + seal_overhead(kem)


@both_kems
def test_a_snapshot_that_is_moved_elsewhere_does_not_open(subtests: pytest.Subtests, kem: Kem) -> None:
    sealed = SEALS[kem][CLIENT].seal_snapshot(3, OTHER_CLIENT, 2, SECRET)

    elsewhere = [(2, CLIENT, 2), (4, CLIENT, 2), (3, OTHER_CLIENT, 2), (3, MANIFEST.clients[2], 2), (3, CLIENT, 1)]
    for number, sender, chunk in elsewhere:
        with subtests.test(round=number, sender=sender, chunk=chunk):
            check_broken(SEALS[kem][OTHER_CLIENT].open_snapshot, number, sender, chunk, sealed)


@both_kems
def test_a_snapshot_opens_nowhere_else(kem: Kem) -> None:
    sealed = SEALS[kem][CLIENT].seal_snapshot(3, OTHER_CLIENT, 2, SECRET)

    for reader in (CLIENT, MANIFEST.clients[2], AGGREGATOR):
        check_broken(SEALS[kem][reader].open_snapshot, 3, CLIENT, 2, sealed)


@both_kems
def test_a_snapshot_of_another_run_does_not_open(kem: Kem) -> None:
    other_run = RunSeals(identity_of(MANIFEST, CLIENT), make_manifest(seed=8).run_id, SealingKey.generate(kem))
    other_run.accept({OTHER_CLIENT: SEALS[kem][CLIENT].public(OTHER_CLIENT)})

    sealed = other_run.seal_snapshot(3, OTHER_CLIENT, 2, SECRET)

    check_broken(SEALS[kem][OTHER_CLIENT].open_snapshot, 3, CLIENT, 2, sealed)


def test_what_was_sealed_as_one_thing_does_not_open_as_another() -> None:
    """The four kinds of seal are told apart even where everything else about them is the same."""
    seals = fresh_seals()
    seals.accept({CLIENT: bytes.fromhex(seals.claim.public_key)})
    share = seal_share(seals, STAGE, CLIENT, SET_ID, 0, bytes(32))
    key = seals.wrap_sum_key(STAGE, CLIENT, ChunkKey.fresh())
    contribution = seals.seal_contribution(CLIENT, bytes(32))
    snapshot = seals.seal_snapshot(STAGE.round, CLIENT, 0, bytes(32))

    for sealed in (share, key, contribution):
        check_broken(seals.open_snapshot, STAGE.round, CLIENT, 0, sealed)
    for sealed in (key, contribution, snapshot):
        check_broken(open_share, seals, STAGE, CLIENT, SET_ID, 0, sealed)
    for sealed in (share, contribution, snapshot):
        check_broken(seals.unwrap_sum_key, STAGE, CLIENT, sealed)
    for sealed in (share, key, snapshot):
        check_broken(seals.open_contribution, CLIENT, sealed)
