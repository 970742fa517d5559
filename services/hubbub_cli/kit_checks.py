"""Checks of `hubbub kit check`: the archive, its roster, and every file, which is written again and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, StringConstraints, ValidationError

from hubbub import __version__
from hubbub.errors import ConfigurationError
from hubbub.trust.identity import PUBLIC_SUFFIX, Identity, read_identity
from hubbub.trust.roster import Roster, find_conflicts, show_fingerprint, verify_roster
from hubbub_cli.doctor_target import Findings
from hubbub_cli.formatting import count
from hubbub_cli.kit_contents import CA_FILE, FACTS_FILE, ROSTER_FILE, Facts, Files, find_private, unpack

ASK_AGAIN = "use nothing of it, and ask whoever made it to send it again"


class _Told(BaseModel):
    """Facts as the archive has them, of characters that a terminal can be shown."""

    hubbub: Annotated[str, StringConstraints(pattern=r"^[\w.+-]{1,40}$")]
    amqp_url: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,4096}$")]


def check_archive(archive: Path, identity: Path, sha256: str | None, found: Findings) -> str | None:
    """Make all checks; return the kit's digest, or None if the kit is too broken to have one."""
    own = read_identity(identity)
    try:
        content = archive.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{archive} cannot be read: {error.strerror}") from None
    try:
        party, files = unpack(content)
    except ConfigurationError as error:
        found.fail("archive", f"{archive} is no kit: {error}", ASK_AGAIN)
        return None
    if party == own.name:
        found.ok("archive", f"kit of {party}, with {count(len(files), 'file')}")
    else:
        found.fail("archive", f"this is the kit of {party}, and {identity} is {own.name}", "ask for your own kit")
    _check_secrets(files, found)
    facts = _read_facts(files, found)
    if facts is None:
        return None
    _check_roster(facts.roster, own, identity, found)
    _check_files(party, files, facts, found)
    _check_digest(facts.digest, sha256, found)
    return facts.digest


def _check_secrets(files: Files, found: Findings) -> None:
    if private := find_private(files):
        found.fail(
            "secrets",
            f"a private key, a password or a token is in {', '.join(private)}: whoever had the archive has it",
            "tell whoever it belongs to: that party makes a new key, and all get a new roster and new kits",
        )
    else:
        found.ok("secrets", "no private key is in it")


def _read_facts(files: Files, found: Findings) -> Facts | None:
    """Read what the kit follows from; None if that cannot be read, or this version writes other kits."""
    try:
        told = _Told.model_validate_json(files[FACTS_FILE])
        roster = Roster.model_validate_json(files[ROSTER_FILE])
        verify_roster(roster)
    except (KeyError, ValidationError, ConfigurationError):
        found.fail("files", f"{FACTS_FILE} or {ROSTER_FILE} is missing, or was changed", ASK_AGAIN)
        return None
    if told.hubbub != __version__:
        what = f"the kit was made by hubbub {told.hubbub}, and this is {__version__}"
        found.fail("version", what, "install the version that all organisations agreed on, and check again")
        return None
    return Facts(roster, told.amqp_url, files.get(CA_FILE, b""))


def _check_roster(roster: Roster, own: Identity, identity: Path, found: Findings) -> None:
    listed = roster.find(own.name)
    mend = f"send {own.name}{PUBLIC_SUFFIX} to whoever builds the roster, and ask for new kits for everybody"
    if listed is None:
        found.fail("roster", f"{own.name} is not in it", mend)
    elif listed != own.public():
        found.fail("roster", f"it has another key for {own.name} than that of {identity}", mend)
    else:
        organisations = sorted({party.organisation for party in roster.parties})
        found.ok(
            "roster",
            f"{own.name} is in it with the key of {identity}, and {count(len(roster.parties) - 1, 'other')};"
            f" organisations: {', '.join(organisations)}",
        )
    for conflict in find_conflicts(roster):
        found.warn("roster", conflict, "let another organisation run it, or accept it knowingly")


def _check_files(party: str, files: Files, facts: Facts, found: Findings) -> None:
    listed = facts.roster.find(party)
    try:
        expected = {} if listed is None else facts.write_kit(listed)
    except ConfigurationError:
        expected = {}
    if not expected:
        found.fail("files", f"{party} is not in its roster, or {FACTS_FILE} names no broker", ASK_AGAIN)
        return
    wrong = {
        "changed": [name for name in expected if name in files and files[name] != expected[name]],
        "missing": [name for name in expected if name not in files],
        "of no kit": [name for name in files if name not in expected],
    }
    told = [f"{what}: {', '.join(sorted(names))}" for what, names in wrong.items() if names]
    if told:
        found.fail("files", "; ".join(told), ASK_AGAIN)
    else:
        found.ok("files", f"each is as hubbub {__version__} writes it, for the broker {facts.amqp_url}")


def _check_digest(digest: str, sha256: str | None, found: Findings) -> None:
    if sha256 is None:
        found.warn(
            "digest",
            show_fingerprint(digest),
            "compare it with all other parties in a call, once; then check again with --sha256 and what you heard",
        )
    elif "".join(sha256.split()).lower() == digest:
        found.ok("digest", "it is the one that you heard: everybody has the same roster, broker and files")
    else:
        found.fail(
            "digest",
            f"it is {show_fingerprint(digest)}, and not what you heard",
            "start nothing: somebody has another kit. Find out in the same call whose digest differs",
        )
