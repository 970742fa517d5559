"""A real coordinator among parties made by hand: whom it believes, and what an outage leaves behind."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hubbub.errors import Code, ConfigurationError, RejectReason
from hubbub.ids import PartyId
from hubbub.messages.envelope import Message
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import RoundOpened
from hubbub.messages.runs import (
    PartyFailed,
    RunEnded,
    RunJoined,
    RunKey,
    RunKeys,
    RunProposed,
    RunReady,
    RunRefused,
)
from hubbub.messages.shares import SetReceived, SignedReceipt
from hubbub.rest import RoundView
from hubbub_coordinator.api.views import view_round
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.reasons import tell_refusal
from support.aio import aio
from support.builders import TRANSCRIPT, make_cohort, make_manifest, make_run_key
from support.coordinator_scene import (
    AGGREGATOR,
    ANOTHER,
    CLIENT,
    MANIFEST,
    ME,
    REPORT,
    Scene,
    running_scene,
    signed_by,
)


@aio
async def test_a_run_from_the_proposal_to_the_last_word(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.open_round()
        await scene.finish()
        assert scene.state() is runs.State.COMPLETED
        assert scene.dead() == []
        released = {"members": list(MANIFEST.clients), "transcript": TRANSCRIPT, "round": 1, "phase": "signs"}
        assert scene.recorded() == [
            ("opened", {"party": ME}),
            ("joined", {}),
            ("released", released),
            ("ended", {"outcome": "completed"}),
        ]


@aio
async def test_everybody_is_sent_all_keys_and_no_round_opens_before_all_are_ready(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.coordinator.submit(MANIFEST)
        await scene.join()
        for party in scene.parties.values():
            ((_, body),) = await party.hear(RunKeys)
            named = (*MANIFEST.aggregators, *MANIFEST.clients)
            assert body.keys == tuple(make_run_key(MANIFEST, name) for name in named)
        *others, last = scene.parties
        for name in others:
            await scene.say(name, RunReady())
        await scene.say(last, PartyFailed(code=Code.PROTOCOL_GROUP))
        await scene.parties[CLIENT].hear(RunEnded)
        assert not [each for each in scene.parties[CLIENT].heard if isinstance(each.body, RoundOpened)]


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        pytest.param(make_manifest(clients=4), "the manifest is for the roster", id="another-roster"),
        pytest.param(
            make_manifest(clients=4, roster_sha256=MANIFEST.roster_sha256),
            "client-4 is not in the roster",
            id="a-stranger",
        ),
        pytest.param(
            make_manifest(cohort=make_cohort(MANIFEST.clients[::-1]), roster_sha256=MANIFEST.roster_sha256),
            "client-3 belongs to org-3 in the roster, and to org-1 in the manifest; client-1 belongs to",
            id="other-organisations",
        ),
        pytest.param(
            make_manifest(
                cohort=make_cohort((*MANIFEST.clients[:2], MANIFEST.aggregators[1])),
                aggregators=(MANIFEST.aggregators[0], MANIFEST.clients[2]),
                roster_sha256=MANIFEST.roster_sha256,
            ),
            "client-3 is client in the roster, and aggregator in the manifest",
            id="other-roles",
        ),
    ],
)
@aio
async def test_a_manifest_that_disagrees_with_the_roster_cannot_be_submitted(
    tmp_path: Path, manifest: Manifest, why: str
) -> None:
    async with running_scene(tmp_path) as scene:
        with pytest.raises(ConfigurationError, match=why):
            await scene.coordinator.submit(manifest)
        assert scene.coordinator.list_runs() == []
        await scene.open_round()
        await scene.finish()


# Keys that are not what they should be ------------------------------------------------------------------


def of_another() -> RunKey:
    return make_run_key(MANIFEST, AGGREGATOR)


def signed_by_another() -> RunKey:
    return make_run_key(MANIFEST, CLIENT).model_copy(update={"signature": of_another().signature})


def signed_for_another_run() -> RunKey:
    return make_run_key(ANOTHER, CLIENT)


@pytest.mark.parametrize(
    ("make_key", "reason"),
    [
        (of_another, "wrong-sender"),
        (signed_by_another, "bad-signature"),
        (signed_for_another_run, "bad-signature"),
    ],
)
@aio
async def test_a_run_key_that_its_party_did_not_sign_is_put_aside(
    tmp_path: Path, make_key: Callable[[], RunKey], reason: str
) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.coordinator.submit(MANIFEST)
        await scene.say(CLIENT, RunJoined(run_key=make_key()))
        await scene.join()
        assert await scene.bury() == [reason]
        ((_, body),) = await scene.parties[CLIENT].hear(RunKeys)
        assert make_run_key(MANIFEST, CLIENT) in body.keys


@aio
async def test_a_refusal_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.coordinator.submit(MANIFEST)
        await scene.say(CLIENT, RunRefused(code=Code.PROTOCOL_TASK))
        for party in scene.parties.values():
            ((_, ended),) = await party.hear(RunEnded)
            assert (ended.outcome, ended.reason) == ("failed", tell_refusal(CLIENT, Code.PROTOCOL_TASK))


Misdeed = Callable[[Scene], Awaitable[None]]


def misdeed(
    who: PartyId,
    body: Message,
    *,
    round_number: int = 1,
    sender: PartyId | None = None,
    signer: PartyId | None = None,
) -> Misdeed:
    return lambda scene: scene.say(who, body, round_number=round_number, sender=sender, signer=signer)


def received(receipt: SignedReceipt, *, by: PartyId = AGGREGATOR) -> Misdeed:
    return misdeed(by, SetReceived(receipt=receipt))


OTHER = MANIFEST.aggregators[1]
FORGED = signed_by(AGGREGATOR).model_copy(update={"signature": signed_by(OTHER).signature})


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        pytest.param(received(signed_by(OTHER)), "wrong-sender", id="anothers-receipt"),
        pytest.param(received(signed_by(OTHER), by=CLIENT), "wrong-sender", id="receipt-of-a-client"),
        pytest.param(received(FORGED), "bad-signature", id="forged-receipt"),
        pytest.param(received(signed_by(AGGREGATOR, phase="union")), "bad-signature", id="of-another-phase"),
        pytest.param(received(signed_by(AGGREGATOR, round_number=2)), "bad-signature", id="of-another-round"),
        pytest.param(received(signed_by(AGGREGATOR, manifest=ANOTHER)), "bad-signature", id="of-another-run"),
        pytest.param(misdeed(AGGREGATOR, REPORT), "wrong-sender", id="application-by-an-aggregator"),
        pytest.param(misdeed(CLIENT, RunReady(), sender=PartyId("mallory")), "not-in-roster", id="stranger"),
        pytest.param(misdeed(OTHER, REPORT, sender=CLIENT, signer=OTHER), "bad-signature", id="forged-sender"),
        pytest.param(misdeed(CLIENT, REPORT), "unexpected", id="application-before-any-sum"),
        pytest.param(misdeed(CLIENT, REPORT, round_number=7), "too-early", id="future-round"),
        pytest.param(misdeed(AGGREGATOR, RoundOpened()), "wrong-recipient", id="our-own-kind-of-message"),
    ],
)
@aio
async def test_a_bad_message_is_put_aside_and_the_run_completes(tmp_path: Path, do: Misdeed, reason: str) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.open_round()
        await do(scene)
        await scene.finish()
        assert await scene.bury() == [reason]
        assert scene.coordinator.counters.rejections(RejectReason(reason)) == 1
        assert [fields["reason"] for kind, fields in scene.recorded() if kind == "refused"] == [reason]
        assert scene.state() is runs.State.COMPLETED


@aio
async def test_a_message_of_an_unknown_run_is_put_aside(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.say(CLIENT, RunReady())
        await scene.bury()  # It is taken before the run is submitted.
        await scene.open_round()
        await scene.finish()
        assert scene.dead() == ["unknown-run"]


@aio
async def test_what_comes_after_the_end_changes_nothing(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.open_round()
        await scene.finish()
        before = scene.coordinator.find_run(MANIFEST.run_id), view_rounds(scene)
        await scene.say(CLIENT, PartyFailed(code=Code.INTERNAL))
        await scene.say(CLIENT, REPORT, round_number=1)
        await scene.coordinator.submit(ANOTHER)
        await scene.parties[CLIENT].hear(RunProposed, 2)
        assert before == (scene.coordinator.find_run(MANIFEST.run_id), view_rounds(scene))
        assert scene.dead() == []


def view_rounds(scene: Scene) -> list[RoundView]:
    return [view_round(*each) for each in scene.coordinator.find_rounds(MANIFEST.run_id)]
