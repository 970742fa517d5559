from itertools import combinations

from hubbub.crypto.key_derivation import ClientSecret
from hubbub.ids import RunId

RUN, OTHER_RUN = RunId("0" * 64), RunId("1" * 64)


def seed(secret: ClientSecret, *, purpose: str = "batches", run: RunId = RUN, round_number: int = 1) -> int:
    return secret.seed_for(purpose, run=run, round_number=round_number)


def test_purpose_run_and_round_each_change_the_seed() -> None:
    secret = ClientSecret.from_os()
    seeds = [
        seed(secret),
        seed(secret, purpose="union"),
        seed(secret, run=OTHER_RUN),
        seed(secret, round_number=2),
        seed(secret, purpose="batches1", round_number=1),
        seed(secret, purpose="batches", round_number=11),
    ]

    assert all(a != b for a, b in combinations(seeds, 2))


def test_a_secret_that_was_kept_gives_the_same_seeds_in_every_run_and_round() -> None:
    secret = ClientSecret.from_os()
    again = ClientSecret.from_bytes(secret.to_bytes())

    for run in (RUN, OTHER_RUN):
        for number in (1, 2):
            assert seed(again, run=run, round_number=number) == seed(secret, run=run, round_number=number)


def test_seeds_differ_and_use_all_of_their_16_bytes() -> None:
    seeds = [seed(ClientSecret.from_os()) for _ in range(64)]

    assert len(set(seeds)) == 64
    assert 2**125 <= max(seeds) < 2**128


def test_demo_secret_follows_from_seed_client_and_round_alone() -> None:
    demo = ClientSecret.for_demo(7, 0)

    assert seed(demo) == seed(ClientSecret.for_demo(7, 0))
    # A run over another transport or in another wire mode is another manifest; its batches are the same.
    assert seed(demo) == seed(demo, run=OTHER_RUN)
    assert seed(demo) != seed(demo, round_number=2)
    assert seed(demo) != seed(ClientSecret.for_demo(8, 0))
    assert seed(demo) != seed(ClientSecret.for_demo(7, 1))
    assert seed(ClientSecret.for_demo(1, 11)) != seed(ClientSecret.for_demo(11, 1))


def test_keys_have_32_bytes_and_seeds_are_their_beginning() -> None:
    secret = ClientSecret.from_os()
    key = secret.key_for("strategy", run=RUN, round_number=1)

    assert len(key) == 32
    assert seed(secret, purpose="strategy") == int.from_bytes(key[:16], "big")
    assert key != secret.key_for("strategy", run=RUN, round_number=2)
    assert key != secret.key_for("strategy", run=OTHER_RUN, round_number=1)
    assert key != secret.key_for("batches", run=RUN, round_number=1)
