"""What `hubbub doctor` finds on this machine: versions, identity, roster, policy, folder."""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from hubbub import __version__
from hubbub.disk import is_open_to_others
from hubbub.errors import ConfigurationError
from hubbub.ids import Role
from hubbub.trust.identity import Identity, read_identity
from hubbub.trust.roster import Roster, find_conflicts, read_roster, show_fingerprint
from hubbub_cli.findings import Findings
from hubbub_cli.patient import Patient
from hubbub_cli.policy import policy_model_for
from hubbub_cli.wording import show_bytes

OLDEST_PYTHON = (3, 11)
FREE_BYTES = 2**30
"""Less than this is soon used up: a client's share sets of a large model wait on an aggregator's disk."""


def check_versions(patient: Patient, found: Findings) -> None:
    """Look at Python, at Hubbub and at what it needs."""
    told = (
        f"hubbub {__version__}, Python {platform.python_version()}, cryptography {_find_version('cryptography')}"
    )
    old = [name for name, oldest in _list_requirements() if _is_older(_find_version(name), oldest)]
    if sys.version_info < OLDEST_PYTHON:
        found.complain("versions", told, "install Python 3.11 or later")
    elif old:
        found.complain(
            "versions",
            f"{told}; missing or too old: {', '.join(old)}",
            "install again: pip install --upgrade hubbub",
        )
    else:
        found.praise("versions", told)
    if patient.role is Role.CLIENT:
        _check_torch(found)


def _check_torch(found: Findings) -> None:
    there = _find_version("torch")
    if there:
        found.praise("torch", there)
    else:
        found.warn(
            "torch", "is not installed, and the tasks lenet and alexnet need it", "pip install 'hubbub[trainer]'"
        )


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _list_requirements() -> list[tuple[str, str]]:
    """What the package says that it needs at least; extras are for who asks for them."""
    try:
        lines = requires("hubbub") or []
    except PackageNotFoundError:
        return []
    found = (re.match(r"([\w.-]+)\s*>=\s*([\d.]+)", line) for line in lines if "extra ==" not in line)
    return [(match[1], match[2]) for match in found if match]


def _is_older(there: str, oldest: str) -> bool:
    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", text)[0]))

    return numbers(there) < numbers(oldest)


def check_identity(patient: Patient, found: Findings) -> Identity | None:
    """Look whether this party's private file is there, is for its owner alone, and is of its role."""
    path = patient.path("identity")
    if path is None:
        found.skip("identity", f"not set: {patient.variable('identity')}")
        return None
    try:
        if is_open_to_others(path.stat()):
            found.complain("identity", f"others than its owner may read or change {path}", f"chmod 600 {path}")
            return None
        identity = read_identity(path)
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror}"
        found.complain("identity", what, "make one with `hubbub keys new`, or name the right file")
        return None
    except ConfigurationError as error:
        found.complain(
            "identity", str(error), "restore it from a copy; if there is none, make another and a new roster"
        )
        return None
    told = f"{identity.role.value} {identity.name} of {identity.organisation}"
    if patient.role not in {None, identity.role}:
        found.complain(
            "identity", f"this is {told}, not {patient.role}", f"name the private file of a {patient.role}"
        )
        return None
    found.praise("identity", told)
    return identity


def check_roster(patient: Patient, identity: Identity | None, found: Findings) -> Roster | None:
    """Look whether the roster is genuine, is the one that is pinned, and has this party in it."""
    path = patient.path("roster")
    if path is None:
        found.skip("roster", f"not set: {patient.variable('roster')}")
        return None
    try:
        roster = read_roster(path)
    except ConfigurationError as error:
        found.complain("roster", str(error), "ask whoever built it for a whole copy, and compare its digest")
        return None
    told = f"{len(roster.parties)} parties, digest {show_fingerprint(roster.digest)}"
    pinned = patient.settings.get("roster_sha256")
    if pinned is not None and pinned != roster.digest:
        found.complain(
            "roster",
            f"its digest is {roster.digest}, but {pinned} is pinned",
            "compare digests with the other parties over another channel before you change the pin",
        )
    elif identity is not None and roster.find(identity.name) != identity.public():
        found.complain(
            "roster",
            f"{identity.name} is not in it with the key of {patient.settings.get('identity')}",
            "a roster must be built from the public file that belongs to this identity, and pinned again by all",
        )
    else:
        found.praise("roster", told)
    for conflict in find_conflicts(roster):
        found.warn("roster", conflict, "let another organisation run it, or accept it knowingly")
    return roster


def check_policy(patient: Patient, roster: Roster | None, found: Findings) -> None:
    """Look whether the policy of the data owner or the aggregator can be read and pins this roster."""
    from hubbub_trainer.policy import Policy  # noqa: PLC0415  (Only a client's has a demo seed.)

    path = patient.path("policy")
    if path is None:
        found.skip("policy", f"not set: {patient.variable('policy')}")
        return
    try:
        policy = policy_model_for(patient.role).read(path)
    except ConfigurationError as error:
        found.complain("policy", str(error), "correct the file; `hubbub policy init` writes one with all limits")
        return
    if roster is not None and policy.roster_sha256 != roster.digest:
        found.complain(
            "policy",
            f"it pins the roster {show_fingerprint(policy.roster_sha256)}, not this one",
            "compare digests with the other parties over another channel, then put the right one into the policy",
        )
        return
    found.praise(
        "policy", f"{len(policy.approved)} approved runs, at least {policy.min_clients} organisations a sum"
    )
    if isinstance(policy, Policy) and policy.demo_seed:
        found.warn(
            "policy", "it lets secrets come from a seed that everybody knows", "demo_seed = false, unless you test"
        )


def check_folder(patient: Patient, found: Findings) -> None:
    """Look whether this party can keep what must survive it."""
    path = patient.path("folder")
    if path is None:
        found.skip("folder", f"not set: {patient.variable('folder')}")
        return
    # One that is not there yet is made at the first start.
    there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    mend = f"name a folder that this user may write to: {patient.variable('folder')}"
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        found.complain("folder", f"{there} cannot be written to by this user", mend)
        return
    free = shutil.disk_usage(there).free
    if _is_locked(path / "lock"):
        found.warn(
            "folder",
            f"a process is running in {path}",
            "right if it is this party's service; a second one cannot start there",
        )
    if free < FREE_BYTES:
        found.warn(
            "folder", f"only {show_bytes(free)} are free in {path}", "make room, or name a folder on another disk"
        )
    else:
        found.praise("folder", f"{path} can be written to, {show_bytes(free)} are free")


def _is_locked(path: Path) -> bool:
    """Whether a service holds the lock; it is let go at once if it was free."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
