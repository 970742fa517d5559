"""A real coordinator among parties made by hand: the messages and manifests that it believes."""

from pathlib import Path
from typing import Any

import pytest

from hubbub.errors import Code, ConfigurationError, RejectReason
from hubbub.ids import PartyId
from hubbub.messages.envelope import Message
from hubbub.messages.rounds import RoundOpened
from hubbub.messages.runs import PartyFailed, RunEnded, RunJoined, RunKeys, RunProposed, RunReady, RunRefused
from hubbub.messages.shares import SetReceived
from hubbub.rest import RoundView
from hubbub_coordinator.api.views import view_round
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.reasons import tell_refusal
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


DISAGREEING = [
    (make_manifest(clients=4), "the manifest is for the roster"),
    (make_manifest(clients=4, roster_sha256=MANIFEST.roster_sha256), "client-4 is not in the roster"),
    (
        make_manifest(cohort=make_cohort(MANIFEST.clients[::-1]), roster_sha256=MANIFEST.roster_sha256),
        "client-3 belongs to org-3 in the roster, and to org-1 in the manifest; client-1 belongs to",
    ),
    (
        make_manifest(
            cohort=make_cohort((*MANIFEST.clients[:2], MANIFEST.aggregators[1])),
            aggregators=(MANIFEST.aggregators[0], MANIFEST.clients[2]),
            roster_sha256=MANIFEST.roster_sha256,
        ),
        "client-3 is client in the roster, and aggregator in the manifest",
    ),
]


async def test_a_manifest_that_disagrees_with_the_roster_cannot_be_submitted(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        for manifest, why in DISAGREEING:
            with pytest.raises(ConfigurationError, match=why):
                await scene.coordinator.submit(manifest)
        assert scene.coordinator.list_runs() == []
        await scene.open_round()
        await scene.finish()


async def test_a_run_key_that_its_party_did_not_sign_is_put_aside(tmp_path: Path) -> None:
    own, of_another = make_run_key(MANIFEST, CLIENT), make_run_key(MANIFEST, AGGREGATOR)
    async with running_scene(tmp_path) as scene:
        await scene.coordinator.submit(MANIFEST)
        for key in (
            of_another,
            own.model_copy(update={"signature": of_another.signature}),
            make_run_key(ANOTHER, CLIENT),
        ):
            await scene.say(CLIENT, RunJoined(run_key=key))
        await scene.join()
        assert await scene.bury(3) == ["wrong-sender", "bad-signature", "bad-signature"]
        ((_, body),) = await scene.parties[CLIENT].hear(RunKeys)
        assert own in body.keys


async def test_a_refusal_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.coordinator.submit(MANIFEST)
        await scene.say(CLIENT, RunRefused(code=Code.PROTOCOL_TASK))
        for party in scene.parties.values():
            ((_, ended),) = await party.hear(RunEnded)
            assert (ended.outcome, ended.reason) == ("failed", tell_refusal(CLIENT, Code.PROTOCOL_TASK))


OTHER = MANIFEST.aggregators[1]
FORGED = signed_by(AGGREGATOR).model_copy(update={"signature": signed_by(OTHER).signature})
MISDEEDS: list[tuple[PartyId, Message, dict[str, Any], str]] = [
    (AGGREGATOR, SetReceived(receipt=signed_by(OTHER)), {}, "wrong-sender"),
    (CLIENT, SetReceived(receipt=signed_by(OTHER)), {}, "wrong-sender"),
    (AGGREGATOR, SetReceived(receipt=FORGED), {}, "bad-signature"),
    (AGGREGATOR, SetReceived(receipt=signed_by(AGGREGATOR, phase="union")), {}, "bad-signature"),
    (AGGREGATOR, SetReceived(receipt=signed_by(AGGREGATOR, round_number=2)), {}, "bad-signature"),
    (AGGREGATOR, SetReceived(receipt=signed_by(AGGREGATOR, manifest=ANOTHER)), {}, "bad-signature"),
    (AGGREGATOR, REPORT, {}, "wrong-sender"),
    (CLIENT, RunReady(), {"sender": PartyId("mallory")}, "not-in-roster"),
    (OTHER, REPORT, {"sender": CLIENT, "signer": OTHER}, "bad-signature"),
    (CLIENT, REPORT, {}, "unexpected"),
    (CLIENT, REPORT, {"round_number": 7}, "too-early"),
    (AGGREGATOR, RoundOpened(), {}, "wrong-recipient"),
]


async def test_bad_messages_are_put_aside_and_the_run_completes(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.open_round()
        for number, (who, body, fields, reason) in enumerate(MISDEEDS, 1):
            await scene.say(who, body, **{"round_number": 1, **fields})
            assert (await scene.bury(number))[-1] == reason, (who, body, fields)
        await scene.finish()
        reasons = [reason for *_, reason in MISDEEDS]
        assert scene.dead() == reasons
        for reason in reasons:
            assert scene.coordinator.counters.rejections(RejectReason(reason)) == reasons.count(reason)
        # The audit log does not have every repetition.
        assert {fields["reason"] for kind, fields in scene.recorded() if kind == "refused"} == set(reasons)
        assert scene.state() is runs.State.COMPLETED


async def test_a_message_of_an_unknown_run_is_put_aside(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.say(CLIENT, RunReady())
        await scene.bury()  # It is taken before the run is submitted.
        await scene.open_round()
        await scene.finish()
        assert scene.dead() == ["unknown-run"]


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
