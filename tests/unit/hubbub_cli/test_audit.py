"""`hubbub audit` as a user sees it: what it prints, and the exit code that a script goes by."""

from pathlib import Path

import pytest
from pydantic import JsonValue

from hubbub.ids import PartyId
from hubbub.trust.audit import AuditLog
from support.builders import make_manifest
from support.command_line import Hubbub

MANIFEST = make_manifest(clients=3, servers=2, roster_sha256="cd" * 32)
RUN = MANIFEST.run_id


def write(path: Path, party: str, *, transcript: str = "11" * 32) -> Path:
    members: JsonValue = ["client-1", "client-2", "client-3"]
    log = AuditLog(path, PartyId(party))
    log.append("joined", run=RUN, manifest=MANIFEST.model_dump(mode="json"), roster_sha256="cd" * 32)
    log.append("released", run=RUN, round=1, phase="signs", members=members, transcript=transcript)
    log.append("ended", run=RUN, outcome="completed")
    log.close()
    return path


@pytest.fixture
def client(tmp_path: Path) -> Path:
    return write(tmp_path / "client.jsonl", "client-1")


def break_line(path: Path, number: int) -> None:
    lines = path.read_text("ascii").splitlines(keepends=True)
    lines[number - 1] = lines[number - 1].replace("client-3", "client-4")
    path.write_text("".join(lines), "ascii")


def test_a_whole_log_is_described(hubbub: Hubbub, client: Path) -> None:
    shown = hubbub("audit", "verify", client)
    told = hubbub("audit", "verify", client, "--json")

    report = told.json
    assert (shown.code, told.code) == (0, 0)
    assert (report["intact"], report["party"], report["entries"], report["runs"]) == (True, "client-1", 4, [RUN])
    lines = dict(line.split(maxsplit=1) for line in shown.out.splitlines()[:6])
    assert (lines["party"], lines["entries"], lines["head"]) == ("client-1", "4", report["head"])
    assert (lines["first"], lines["last"]) == tuple(
        report[end].replace("T", " ").replace("+00:00", " UTC") for end in ("first", "last")
    )
    assert lines["runs"] == RUN


@pytest.mark.parametrize("command", ["verify", "compare"])
def test_a_broken_chain_fails_and_says_where(hubbub: Hubbub, client: Path, command: str) -> None:
    break_line(client, 3)
    files = [client] if command == "verify" else [client, client]

    shown = hubbub("audit", command, *files)
    told = hubbub("audit", command, *files, "--json")

    assert (shown.code, told.code) == (1, 1)
    assert shown.err == f"hubbub: {client}, line 3: the line was changed: its digest does not match\n"
    assert told.json == {
        "intact": False,
        "file": str(client),
        "line": 3,
        "problem": "the line was changed: its digest does not match",
    }


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("verify", "/nowhere"), "/nowhere cannot be read: No such file"),
        (("compare", "/nowhere", "/nowhere"), "/nowhere cannot be read: No such file"),
        (("compare", "/nowhere"), "one log alone cannot be compared"),
    ],
)
def test_a_wrong_use_is_told_in_one_line(hubbub: Hubbub, arguments: tuple[str, ...], complaint: str) -> None:
    hubbub("audit", *arguments).check_refused(complaint)


def test_logs_that_agree_say_on_how_much(hubbub: Hubbub, client: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.jsonl", "aggregator-1")

    shown = hubbub("audit", "compare", client, other)
    told = hubbub("audit", "compare", client, other, "--json").json

    assert (shown.code, shown.out) == (0, "2 logs agree on 1 run, 1 phase.\n")
    assert (told["agree"], told["common"]) == (True, {"runs": 1, "phases": 1})
    assert [(log["file"], log["party"]) for log in told["logs"]] == [
        (str(client), "client-1"),
        (str(other), "aggregator-1"),
    ]


def test_logs_that_differ_fail_and_say_who_says_what(hubbub: Hubbub, client: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.jsonl", "aggregator-1", transcript="22" * 32)

    shown = hubbub("audit", "compare", client, other)
    told = hubbub("audit", "compare", client, other, "--json")

    assert (shown.code, told.code) == (1, 1)
    text = " ".join(shown.out.split())
    assert RUN[:12] in text
    assert "different transcripts" in text
    assert "1 difference between 2 logs; in common: 1 run, 1 phase." in text
    report = told.json
    assert report["agree"] is False
    assert report["differences"] == [
        {
            "kind": "different-transcripts",
            "run": RUN,
            "place": "round 1, phase signs",
            "what": "client-1 says 1111111111111111…; aggregator-1 says 2222222222222222…",
            "parties": ["client-1", "aggregator-1"],
        }
    ]


def test_a_note_alone_does_not_fail(hubbub: Hubbub, client: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.jsonl"
    AuditLog(stranger, PartyId("stranger")).close()
    other = write(tmp_path / "other.jsonl", "aggregator-1")

    shown = hubbub("audit", "compare", client, other, stranger)

    assert shown.code == 0
    assert "note: stranger shares no run with the others" in shown.out
    assert "3 logs agree on 1 run, 1 phase." in shown.out
