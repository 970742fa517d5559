"""A federation for `hubbub doctor` to look at, and what it found."""

from pathlib import Path

from hubbub.ids import PartyId, Role
from hubbub_cli.doctor_target import CheckStatus
from support.command_line import Ended
from support.party_files import PartyFiles

ANNA, BERT = PartyId("anna"), PartyId("bert")
ADA, ALAN = PartyId("ada"), PartyId("alan")
CORA = PartyId("cora")
ROLES = {
    ANNA: Role.CLIENT,
    BERT: Role.CLIENT,
    ADA: Role.AGGREGATOR,
    ALAN: Role.AGGREGATOR,
    CORA: Role.COORDINATOR,
}


def client_options(files: PartyFiles) -> tuple[str | Path, ...]:
    return (
        *("--identity", files.identity(ANNA), "--roster", files.roster, "--policy", files.policy(ANNA)),
        *("--folder", files.folder / "anna", "--data", "digits"),
    )


def verdicts(ended: Ended) -> dict[str, str]:
    """The worst verdict on each thing that was looked at."""
    order = list(CheckStatus)
    found: dict[str, str] = {}
    for each in ended.json["checks"]:
        rank = max(order.index(each["verdict"]), order.index(CheckStatus(found.get(each["check"], "ok"))))
        found[each["check"]] = order[rank] if each["verdict"] != "skipped" else found.get(each["check"], "skipped")
    return found


def find(ended: Ended, check: str, verdict: str = "problem") -> dict[str, str]:
    """The finding of a check; it must be alone of its kind."""
    found: list[dict[str, str]] = [
        each for each in ended.json["checks"] if (each["check"], each["verdict"]) == (check, verdict)
    ]
    assert len(found) == 1, ended.out
    return found[0]
