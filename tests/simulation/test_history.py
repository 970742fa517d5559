"""Clients that vanish at the worst moments and come back: every model is that of the same history in the open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from unittest.mock import patch

import pytest

from hubbub.ids import PartyId
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import RoundOpened
from hubbub.messages.runs import RunEnded
from hubbub.messages.shares import ShareChunk
from hubbub.runtime.publisher import overlapping
from hubbub_trainer.workspace import digest
from support.builders import client_names, make_manifest
from support.plain_federation import PlainFederation
from support.plain_run import run_plainly
from support.simulation.ledger import Ledger
from support.simulation.operations import History
from support.simulation.play import play_run
from support.simulation.shortcuts import QuickTask
from support.simulation.world import DEMO_SEED, World

# The fewest parameters of which the indices take two chunks.
TASK = QuickTask(1_031)
SEED = 7
FOR_GOOD_S = 100_000.0
SLOW_S = 20.0

ONE, TWO, THREE, FOUR, FIVE = CLIENTS = client_names(5)

Event = tuple[str, int, str]
"""The kind, round and phase of a message that the broker has just taken for the first time."""
END: Event = (RunEnded.kind, 0, "")


def order(number: int) -> Event:
    return (RoundOpened.kind, number, "")


def share(number: int, phase: str) -> Event:
    return (ShareChunk.kind, number, phase)


@dataclass(slots=True)
class Story:
    """Who vanishes and who returns, and over whom the rounds are released then."""

    vanish: Mapping[PartyId, Event]
    """A client is gone from the moment at which the broker has a message of this kind from it, or for it."""
    back: Mapping[PartyId, Event]
    released: Mapping[int, set[PartyId]]
    told: set[tuple[PartyId, Event]] = field(default_factory=set)

    def __call__(self, world: World, envelope: Envelope) -> None:
        event = (envelope.kind, envelope.round, envelope.phase)
        for client in {envelope.sender, envelope.recipient} & self.vanish.keys():
            if self.vanish[client] == event and self._is_news(client, event):
                world.members[client].cut(FOR_GOOD_S)
        for client, when in self.back.items():
            if when == event and self._is_news(client, event):
                # Slow at first, so that whoever is far behind hears all that it missed before it goes on.
                world.members[client].link.delay_next(SLOW_S if event == END else 0.0)
                world.members[client].mend()

    def _is_news(self, client: PartyId, event: Event) -> bool:
        news = (client, event) not in self.told
        self.told.add((client, event))
        return news


def vanish_in_one_round() -> Story:
    """Round 2 loses two before its union closes and one in its signs; for round 3 there are too few."""
    return Story(
        # Of four and three the first of several chunks has left; five does not hear of the round.
        vanish={FOUR: share(2, "union"), FIVE: order(2), THREE: share(2, "signs")},
        back={FOUR: order(4), THREE: order(5), FIVE: END},
        released={1: set(CLIENTS), 4: {ONE, TWO, FOUR}, 5: {ONE, TWO, THREE, FOUR}},
    )


def vanish_in_two_rounds() -> Story:
    """Round 2 is released without two that had trained for it; round 3 loses one more in its signs."""
    return Story(
        vanish={FOUR: share(2, "union"), FIVE: share(2, "union"), THREE: share(3, "signs")},
        back={FOUR: order(4), THREE: order(5), FIVE: END},
        released={
            1: set(CLIENTS),
            2: {ONE, TWO, THREE},
            4: {ONE, TWO, FOUR},
            5: {ONE, TWO, THREE, FOUR},
        },
    )


def manifest_for(strategy: str, story: Story) -> Manifest:
    return make_manifest(
        clients=5,
        strategy=strategy,
        min_clients=3,
        rounds=len(story.released),
        q=2,
        parameters=TASK.count_parameters(),
        task=TASK.name,
        seed=SEED,
        initial_model_sha256=digest(TASK.initial_model(SEED)),
        chunk_bytes=256,
        phase_timeout_s=30.0,
    )


def play_plainly(
    manifest: Manifest,
    story: Story,
    ledger: Ledger,
    after_round: Callable[[PlainFederation, int], None] = lambda *_: None,
) -> dict[int, str]:
    """The models of the same history in the open; who was idle in a round is as it was."""
    plain = run_plainly(manifest, TASK, demo_seed=DEMO_SEED)
    models = {0: plain.digest()}
    for number, members in story.released.items():
        idle = [place for place, client in enumerate(CLIENTS) if ledger.idle[client, number]]
        plain.play_round(number, [CLIENTS.index(client) for client in members], idle=idle)
        after_round(plain, number)
        models[number] = plain.digest()
    return models


@cache
def play_out(strategy: str, tell: Callable[[], Story]) -> tuple[Manifest, Story, Ledger]:
    story = tell()
    manifest = manifest_for(strategy, story)
    undisturbed = History(seed=1, strategy=strategy, min_clients=3, operations=())
    # One message at a time, so that a client can vanish between two chunks of a set.
    with patch("hubbub_trainer.round_jobs.overlapping", partial(overlapping, 1)):
        return manifest, story, play_run(undisturbed, manifest, TASK, story)


@pytest.mark.parametrize("tell", [vanish_in_one_round, vanish_in_two_rounds])
@pytest.mark.parametrize("strategy", ["sec-union", "partial-sec-union"])
def test_clients_that_vanish_and_return_end_with_the_models_of_the_plaintext_history(
    strategy: str, tell: Callable[[], Story]
) -> None:
    manifest, story, ledger = play_out(strategy, tell)

    assert ledger.violations == []
    assert ledger.released_rounds() == story.released
    expected = play_plainly(manifest, story, ledger)
    assert len(set(expected.values())) == len(expected)
    assert ledger.models == {
        (client, number): model for client in CLIENTS for number, model in expected.items()
    }, "everybody has come through all models, also who heard of them later"
    assert not any(ledger.idle[client, number] for number, members in story.released.items() for client in members)
    assert ledger.idle[FIVE, 4], "who finds a round closed does not train for it"
    assert ledger.idle[FIVE, 5]


def test_what_was_learnt_for_a_round_that_went_on_without_us_is_said_later() -> None:
    manifest, story, ledger = play_out("sec-union", vanish_in_two_rounds)

    def forget(plain: PlainFederation, number: int) -> None:
        if number == 2:
            plain.clients[CLIENTS.index(FOUR)].delta[:] = 0

    kept, lost = play_plainly(manifest, story, ledger), play_plainly(manifest, story, ledger, forget)

    assert ledger.models[FOUR, 5] == kept[5]
    assert [number for number in kept if kept[number] != lost[number]] == [4, 5]
