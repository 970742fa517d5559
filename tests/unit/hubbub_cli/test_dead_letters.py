"""`hubbub dead-letters` as a user sees it: what it prints, and the exit code that a script goes by."""

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hubbub.ids import PartyId, Role
from hubbub.transport.base import reject
from hubbub.transport.rabbitmq import RabbitMqTransport, declare_topology, remove_topology
from hubbub.transport.topology import inbox, route, topology_for
from hubbub.trust.identity import Identity, new_identity, write_identity
from support.builders import make_bodies, make_envelope, make_manifest
from support.command_line import Hubbub
from support.frames import encode
from support.parties import roster_of
from support.twins import Recorder, new_party

PAYLOAD = b"what must not be shown" * 100
CHUNK = next(body for body in make_bodies() if body.kind == "share-chunk")
ENVELOPE = make_envelope(
    CHUNK, sender=PartyId("client-1"), recipient=PartyId("aggregator-1"), phase="signs", payload=PAYLOAD
)
FRAMES = (encode(ENVELOPE), b"nothing like a message")
REASONS = ("wrong-length", "malformed")


async def put_aside(url: str, identity: Identity) -> None:
    """Let a party reject each of the frames."""
    recorder = Recorder(*map(reject, REASONS))
    async with RabbitMqTransport(url, topology_for(identity.name, identity.role)) as transport:
        await transport.subscribe(inbox(identity.name), recorder)
        for frame in FRAMES:
            await transport.publish(route(Role.CLIENT, identity.role, identity.name), frame)
        await recorder.wait_for(len(FRAMES))


@pytest.fixture
def party(amqp_url: str, tmp_path: Path) -> Iterator[tuple[str | Path, ...]]:
    """Options that ask for the letters of a party that has some."""
    identity = new_identity(new_party(), Role.AGGREGATOR, "lab")
    topology = topology_for(identity.name, identity.role)
    private, _ = write_identity(identity, tmp_path)
    asyncio.run(declare_topology(amqp_url, topology))
    asyncio.run(put_aside(amqp_url, identity))
    roster = tmp_path / "roster.json"
    roster.write_bytes(roster_of(make_manifest()).canonical)
    yield "--amqp-url", amqp_url, "--identity", private, "--roster", roster
    asyncio.run(remove_topology(amqp_url, topology))


@pytest.mark.broker
def test_letters_are_listed_as_often_as_one_likes(hubbub: Hubbub, party: tuple[str | Path, ...]) -> None:
    first, second = (hubbub("dead-letters", "list", *party, "--json") for _ in range(2))
    shown = hubbub("dead-letters", "list", *party, columns=160)

    assert {result.code for result in (first, second, shown)} == {0}
    assert first.json == second.json
    ours, malformed = first.json
    assert ours == {
        "number": 1,
        "reason": "wrong-length",
        "kind": "share-chunk",
        "sender": ENVELOPE.sender,
        "run": ENVELOPE.run[:16],
        "round": ENVELOPE.round,
        "phase": ENVELOPE.phase,
        "bytes": len(FRAMES[0]),
        "malformed": None,
    }
    assert (malformed["number"], malformed["reason"], malformed["kind"]) == (2, "malformed", None)
    assert "magic" in malformed["malformed"]
    rows = [line.split() for line in shown.out.splitlines() if "wrong-length" in line or "malformed" in line]
    sizes = [f"{len(frame):,}" for frame in FRAMES]
    assert rows == [
        ["1", "wrong-length", "share-chunk", "client-1", ENVELOPE.run[:12], "1", "signs", sizes[0]],
        ["2", "malformed", "malformed", "-", "-", "-", "-", sizes[1]],
    ]


@pytest.mark.broker
def test_one_letter_is_shown_in_full_but_for_its_payload(hubbub: Hubbub, party: tuple[str | Path, ...]) -> None:
    told, shown = hubbub("dead-letters", "show", 1, *party, "--json"), hubbub("dead-letters", "show", 1, *party)

    letter = told.json
    assert letter["header"]["recipient"] == ENVELOPE.recipient
    assert letter["body"] == CHUNK.model_dump(mode="json")
    assert letter["payload"] == {"bytes": len(PAYLOAD), "sha256": hashlib.sha256(PAYLOAD).hexdigest()}
    for text in (told.out, shown.out):
        assert hashlib.sha256(PAYLOAD).hexdigest() in text
        assert "must not be shown" not in text
        assert PAYLOAD[:20].hex() not in text
    assert "2,200 bytes" in shown.out


@pytest.mark.broker
def test_without_a_roster_parties_are_shown_by_their_numbers(
    hubbub: Hubbub, party: tuple[str | Path, ...]
) -> None:
    told = hubbub("dead-letters", "show", 1, *party[:-2], "--json")

    header = told.json["header"]
    assert (header["sender"], header["recipient"]) == ("party-2", "party-0")


@pytest.mark.broker
def test_letter_that_is_no_message_is_shown_as_such_and_one_that_is_not_there_is_told(
    hubbub: Hubbub, party: tuple[str | Path, ...]
) -> None:
    told, shown = hubbub("dead-letters", "show", 2, *party, "--json"), hubbub("dead-letters", "show", 2, *party)

    letter = told.json
    assert "magic" in letter["malformed"]
    assert letter["sha256"] == hashlib.sha256(FRAMES[1]).hexdigest()
    assert {"header", "body", "payload"}.isdisjoint(letter)
    assert "malformed  the frame does not begin" in shown.out
    assert "nothing like" not in told.out + shown.out
    hubbub("dead-letters", "show", 3, *party).check_refused("there is no dead letter 3: there are 2")


@pytest.mark.broker
def test_party_that_the_broker_does_not_know_fails_without_its_password(
    hubbub: Hubbub, amqp_url: str, tmp_path: Path
) -> None:
    identity = new_identity(new_party(), Role.CLIENT, "lab")
    private, _ = write_identity(identity, tmp_path)
    nobodys = urlsplit(amqp_url)._replace(netloc=amqp_url.rpartition("@")[2].partition("/")[0]).geturl()

    ended = hubbub("dead-letters", "list", "--amqp-url", nobodys, "--identity", private)

    assert ended.code == 1
    assert f"refuses user '{identity.name}'" in ended.err
    assert len(ended.err.splitlines()) == 1
    assert identity.broker_password not in ended.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--amqp-url", "amqp://host/"), "whose dead letters"),
        (("--amqp-url", "http://a:sesame@host/"), "must look like amqp://"),
        (("--amqp-url", "amqp://a:sesame@host/", "--ca-file", "ca.pem"), "write amqps://"),
        (("--amqp-url", "amqp://A:sesame@host/"), "cannot name a party"),
        (("--amqp-url", "amqp://host/", "--identity", "nowhere.json"), "nowhere.json cannot be read"),
    ],
)
def test_what_cannot_be_asked_is_told_in_one_line(
    hubbub: Hubbub, arguments: tuple[str, ...], complaint: str
) -> None:
    ended = hubbub("dead-letters", "list", *arguments)

    ended.check_refused(complaint)
    assert "sesame" not in ended.err
