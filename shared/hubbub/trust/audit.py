"""Audit log: a party's own record of what it took part in.

Every party appends one line for each thing that matters: a manifest, a member set, a digest, a refusal. Each
line carries the digest of the one before it, so a change anywhere breaks the chain from there on.

The chain is not signed. It shows a later edit to those who noted an earlier head or kept an earlier copy. Alone it
does not show a tail that was cut off, nor a log that its own party rewrote from the start. Compared with the logs
of other parties (`hubbub.trust.comparison`), it shows where they differ, not who is right.

No entry holds a secret: what depends on sums or models is written as a digest under a key that is not in the log.
Each line has a random salt, so that a head that is known elsewhere does not confirm a guess at what was logged.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field, JsonValue, StringConstraints, ValidationError

from hubbub.crypto.signing import bind
from hubbub.disk import sync_folder
from hubbub.errors import ConfigurationError, LocalError, StorageFailed
from hubbub.ids import PartyId, RunId, is_party_id
from hubbub.messages.envelope import Claim
from hubbub.messages.manifest import Digest, describe

FORMAT = 2
"""Format of lines with a salt. A log of format 1, whose lines have none, is read, and continued in this format."""
SALT_BYTES = 16
NOTHING_BEFORE = "0" * 64
"""Digest that the first line names as the previous one."""

MAX_TALLIES = 10_000
"""Refusals that are counted apart; a stranger can invent any number of names."""
MAX_TALLIES_OF_ONE = 100
"""The same for one user of the broker, which cannot invent its own name."""
MAX_NAME_CHARACTERS = 80

_LINE_START = b'{"digest":"'


class BrokenChain(ConfigurationError):
    """The chain of a log is broken from `line` on."""

    def __init__(self, path: Path, line: int, how: str) -> None:
        super().__init__(f"{path}, line {line}: {how}")
        self.line, self.how = line, how


class Entry(Claim):
    """Line of a log."""

    sequence: Annotated[int, Field(ge=1)]
    time: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00$")]
    kind: str
    fields: Mapping[str, JsonValue]
    salt: Annotated[str, StringConstraints(pattern=rf"^[0-9a-f]{{{2 * SALT_BYTES}}}$")] | None = None
    """Absent in format 1."""
    previous: Digest
    digest: Digest

    @property
    def format(self) -> int:
        """The version of the line's format."""
        return 1 if self.salt is None else FORMAT


@dataclass(frozen=True, slots=True)
class Log:
    """Log with a valid chain."""

    party: PartyId
    entries: tuple[Entry, ...]

    @property
    def head(self) -> str:
        """The digest of the last entry, which stands for all of them."""
        return self.entries[-1].digest


class AuditLog:
    """Append-only log of a party. After a failure it takes nothing until it is reopened."""

    def __init__(self, path: Path, party: PartyId) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._usable = True
        self._sequence = 0
        self._head = NOTHING_BEFORE
        self._size = 0
        self.runs: Mapping[RunId, bool] = {}
        """The runs that this party had joined when the log was opened, and whether each had ended."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageFailed(f"the audit log {path} cannot be opened: {error.strerror}") from None
        try:
            self._go_on(party)
        except BaseException:
            self.close()
            raise

    @property
    def head(self) -> str:
        """The digest of the last entry, which stands for all of them."""
        return self._head

    def append(self, kind: str, /, **fields: JsonValue) -> None:
        """Write an entry; it is on disk when this returns."""
        with self._lock:
            line, entry = self._compose(kind, fields)
            self._write(line)
            self._sequence, self._head = entry.sequence, entry.digest

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file, self._usable = -1, False

    def _go_on(self, party: PartyId) -> None:
        """Continue the chain of the file; a line that a crash cut short is removed, and that is recorded."""
        try:
            with os.fdopen(self._file, "rb", closefd=False) as stream:
                found = stream.read()
            entries, cut = _check_rest(self._path, found)
            self._take_up(entries, party)
            self._size = len(found) - cut
            os.ftruncate(self._file, self._size)
            sync_folder(self._path.parent)
        except BrokenChain as error:
            raise LocalError(f"the audit log is broken and nothing is added to it: {error}") from None
        except OSError as error:
            raise StorageFailed(f"the audit log {self._path} cannot be used: {error.strerror}") from None
        if found and not cut and not found.endswith(b"\n"):
            self._write(b"\n")
        if not entries:
            self.append("opened", format=FORMAT, party=party)
        if cut:
            self.append("recovered", bytes=cut)

    def _take_up(self, entries: Sequence[Entry], party: PartyId) -> None:
        """Take up where these entries end."""
        if not entries:
            return
        owner = _party_of(entries)
        if owner != party:
            raise LocalError(f"{self._path}, line 1: this is the audit log of {owner}, not of {party}")
        self._sequence, self._head = entries[-1].sequence, entries[-1].digest
        named = [(entry.kind, RunId(str(entry.fields.get("run", "")))) for entry in entries]
        ended = {run for kind, run in named if kind == "ended"}
        self.runs = {run: run in ended for kind, run in named if kind == "joined"}

    def _compose(self, kind: str, fields: dict[str, JsonValue]) -> tuple[bytes, Entry]:
        """Return the next line; raise `LocalError` if it could not be read back."""
        content = {
            "sequence": self._sequence + 1,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "kind": kind,
            "fields": fields,
            "salt": secrets.token_hex(SALT_BYTES),
            "previous": self._head,
        }
        try:
            line = _encode({**content, "digest": _digest_of(content)})
            entry = _read_entry(line)
        except (TypeError, ValueError, RecursionError, ConfigurationError):
            raise LocalError(f"an audit entry of kind {kind!r} holds something that is not plain JSON") from None
        if entry.fields != fields:
            raise LocalError(f"an audit entry of kind {kind!r} holds something that JSON would change")
        return line + b"\n", entry

    def _write(self, piece: bytes) -> None:
        if not self._usable:
            raise LocalError(f"the audit log {self._path} is closed, or failed before")
        self._usable = False
        try:
            if os.fstat(self._file).st_size != self._size:
                raise LocalError(f"the audit log {self._path} was changed by somebody else; it takes nothing more")
            self._size += len(piece)
            while piece:
                piece = piece[os.write(self._file, piece) :]
            os.fsync(self._file)
        except OSError as error:
            raise StorageFailed(f"the audit log {self._path} cannot be written: {error.strerror}") from None
        self._usable = True


class Refusals:
    """Counts refusals and logs powers of two, so that a flood of n adds log n lines."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, str, str]] = Counter()
        self._told_apart: Counter[str] = Counter()

    def note(
        self, reason: str, *, kind: str, sender: str, run: str, by: str = "", **about: JsonValue
    ) -> Callable[[], None] | None:
        """Count a refusal; return the function that logs it if it is the 1st, 2nd, 4th, 8th and so on of its kind.

        Counting takes no time, writing does. `by` is the broker's user who sent what is refused, `about` are
        further fields of the entry.
        """
        key = (_shorten(reason), _shorten(kind), _shorten(sender or by), _shorten(run))
        with self._lock:
            if key not in self._counts:
                key = self._find_room(key, _shorten(by))
            self._counts[key] += 1
            count = self._counts[key]
        if count.bit_count() > 1:
            return None
        reason, kind, sender, run = key
        return partial(
            self._log.append, "refused", reason=reason, kind=kind, sender=sender, run=run, count=count, **about
        )

    def _find_room(self, key: tuple[str, str, str, str], user: str) -> tuple[str, str, str, str]:
        """Return the key under which to count a new kind of refusal: "other" if there are too many kinds."""
        if user and self._told_apart[user] >= MAX_TALLIES_OF_ONE:
            return (key[0], "other", user, "other")
        if len(self._counts) >= MAX_TALLIES:
            return ("other", "other", "other", "other")
        if user:
            self._told_apart[user] += 1
        return key


def _shorten(name: str) -> str:
    """Escape and cut a name that a stranger chose: it is shown on terminals, and kept in memory."""
    return name[:MAX_NAME_CHARACTERS].encode("unicode_escape").decode("ascii")[:MAX_NAME_CHARACTERS]


def read_log(path: Path) -> Log:
    """Read a log; raise `BrokenChain`, which names the line, if its chain is broken anywhere."""
    try:
        found = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    *lines, tail = found.split(b"\n")
    entries = _check_chain(path, lines)
    if tail:
        how = "the last line is incomplete; a crash leaves this, and the party mends it when it starts again"
        raise BrokenChain(path, len(lines) + 1, how)
    if not entries:
        raise BrokenChain(path, 1, "there is no entry, but every log has a first line that names its party")
    return Log(_party_of(entries), entries)


def _check_rest(path: Path, found: bytes) -> tuple[tuple[Entry, ...], int]:
    """Return the entries of a log when its party starts, and the bytes of a last line that a crash cut short."""
    *lines, tail = found.split(b"\n")
    entries = _check_chain(path, lines)
    if not tail:
        return entries, 0
    try:
        _read_entry(tail)
    except ConfigurationError as error:
        # If no crash can have left this, the file is no log of ours and must not be cut.
        is_start = tail.startswith(_LINE_START) or _LINE_START.startswith(tail) or not tail.strip(b"\0")
        if not entries and not is_start:
            raise BrokenChain(path, 1, str(error)) from None
        return entries, len(tail)
    return _check_chain(path, [*lines, tail]), 0


def _check_chain(path: Path, lines: Sequence[bytes]) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = _read_entry(line)
            _check_place(entry, number, entries[-1] if entries else None)
        except ConfigurationError as error:
            raise BrokenChain(path, number, str(error)) from None
        entries.append(entry)
    return tuple(entries)


def _read_entry(line: bytes) -> Entry:
    """Read one line and check that it is, to the byte, what was written."""
    try:
        content = json.loads(line)
        entry = Entry.model_validate(content)
        again = _encode(content)
    except ValidationError as error:
        raise ConfigurationError(f"this is not an entry: {describe(error)}") from None
    except (ValueError, RecursionError):
        raise ConfigurationError("this is not JSON as an entry has it") from None
    digest = content.pop("digest")
    if digest != _digest_of(content) or again != line:
        raise ConfigurationError("the line was changed: its digest does not match")
    return entry


def _check_place(entry: Entry, number: int, before: Entry | None) -> None:
    if entry.sequence != number:
        raise ConfigurationError(
            f"entry {entry.sequence} stands where entry {number} belongs: lines are missing, repeated or reordered"
        )
    if entry.previous != (before.digest if before else NOTHING_BEFORE):
        place = f"line {number - 1}, which was replaced" if before else "the start of a log"
        raise ConfigurationError(f"the line does not follow from {place}")
    if before is None and not _opens(entry):
        raise ConfigurationError(f"the line does not open an audit log of format 1 or {FORMAT}")
    if before is not None and entry.format < before.format:
        raise ConfigurationError("the line has no salt, and the one before it has")


def _opens(entry: Entry) -> bool:
    party = entry.fields.get("party")
    known = entry.fields.get("format") == entry.format
    return entry.kind == "opened" and known and isinstance(party, str) and is_party_id(party)


def _party_of(entries: Sequence[Entry]) -> PartyId:
    return PartyId(str(entries[0].fields["party"]))


def _encode(content: Mapping[str, object]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _digest_of(content: Mapping[str, object]) -> str:
    version = FORMAT if "salt" in content else 1
    return hashlib.sha256(bind("hubbub audit entry", version, _encode(content))).hexdigest()
