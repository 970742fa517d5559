"""Publisher: signs envelopes and sends them, several at a time.

A vector travels in chunks: while one is sealed, signed and sent to the broker, the next is computed. Chunks in
flight are in memory, so their number is bounded; a sender that is faster than the broker waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ParamSpec

from hubbub.errors import HubbubError
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Key
from hubbub.messages.codec import covered, digest_payload, encode_signed, signed_part
from hubbub.messages.envelope import Envelope, Message
from hubbub.messages.wire_form import Directory
from hubbub.transport.base import Transport
from hubbub.transport.topology import route
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster
from hubbub.trust.signed import check_signature

P = ParamSpec("P")

DOMAIN = "message"
LONG_BYTES = 2**17
"""A payload beyond this takes longer to hash than to hand to a thread."""
AT_ONCE = 4
"""Messages in flight: each holds a chunk in memory, and more of them hardly raise the throughput."""


def sign(identity: Identity, envelope: Envelope, directory: Directory) -> Envelope:
    """Sign an envelope as its sender."""
    return replace(envelope, signature=identity.key.sign(DOMAIN, signed_part(envelope, directory)))


def authenticate(roster: Roster, envelope: Envelope, frame: bytes) -> None:
    """Raise `PeerError` if the named sender has not signed the envelope, which was decoded from `frame`."""
    check_signature(roster, envelope.sender, envelope.signature, DOMAIN, covered(frame, envelope))


@dataclass(frozen=True, slots=True)
class Parcel:
    """Payload with its digest: hashed once for all recipients, in the thread that made it."""

    content: bytes = field(repr=False)
    digest: bytes

    @classmethod
    def of(cls, content: bytes) -> Parcel:
        """Hash a payload."""
        return cls(content, digest_payload(content))


class Post:
    """Sends the messages of one party; `note` is called with every message that the broker took, and its size."""

    def __init__(
        self,
        transport: Transport,
        identity: Identity,
        directory: Directory,
        note: Callable[[Envelope, int], None] = lambda *_: None,
    ) -> None:
        self._transport = transport
        self._identity = identity
        self._directory = directory
        self._note = note

    async def send(
        self,
        key: Key,
        *,
        to: PartyId,
        role: Role,
        body: Message,
        phase: str = "",
        payload: bytes | Parcel = b"",
    ) -> None:
        """Send a message about the run, round and phase of `key`; return when the broker has taken it."""
        content, digest = (payload.content, payload.digest) if isinstance(payload, Parcel) else (payload, None)
        envelope = Envelope(
            run=key.run,
            round=key.round,
            phase=phase or key.phase,
            sender=self._identity.name,
            recipient=to,
            body=body,
            payload=content,
        )
        sign_it = partial(self._identity.key.sign, DOMAIN)
        write = partial(encode_signed, envelope, self._directory, sign_it, digest)
        # A long payload is hashed in a thread, so that the loop is not blocked.
        takes_long = digest is None and len(content) > LONG_BYTES
        frame = await asyncio.to_thread(write) if takes_long else write()
        await self._transport.publish(route(self._identity.role, role, to), frame)
        self._note(envelope, len(frame))


class Overlap:
    """Runs calls in the background, at most `at_once` at a time."""

    def __init__(self, at_once: int) -> None:
        self._room = asyncio.Semaphore(at_once)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: HubbubError | None = None

    async def begin(self, work: Callable[P, Awaitable[None]], *args: P.args, **kwargs: P.kwargs) -> None:
        """Start a call as soon as there is room for it; raise the failure of an earlier one."""
        await self._room.acquire()
        self._raise_failure()
        self._tasks.add(asyncio.create_task(self._finish(work, *args, **kwargs)))

    async def _finish(self, work: Callable[P, Awaitable[None]], *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            await work(*args, **kwargs)
        except HubbubError as error:
            self._failure = self._failure or error
        finally:
            self._room.release()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def wait(self) -> None:
        """Return when all calls have ended; raise the first failure as soon as there is one."""
        while self._tasks and self._failure is None:
            done, self._tasks = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        self._raise_failure()

    async def give_up(self) -> None:
        """Cancel the calls that are still running."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def overlapping(at_once: int = AT_ONCE) -> AsyncIterator[Overlap]:
    """Wait at the end of the block for all calls begun in it; the first failure cancels the rest and is raised."""
    overlap = Overlap(at_once)
    try:
        yield overlap
        await overlap.wait()
    finally:
        await overlap.give_up()
