"""A federation in a thread of its own, its coordinator at an address: what commands talk to."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hubbub.ids import RunId
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.runtime.runner import Transition
from hubbub.runtime.web_server import listen
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub_coordinator.api.access import Tokens
from hubbub_coordinator.api.app import answering
from hubbub_coordinator.phases.round import CoordinatorRound
from hubbub_local.federation import Federation, start_federation
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import Task
from hubbub_trainer.workspace import digest
from support.builders import make_manifest
from support.held_task import HeldTask, Silence
from support.parties import parties_of
from support.party_files import write_private
from support.patience import HANG_S

T = TypeVar("T")

TASK = SyntheticTask(300)
TOKENS = Tokens(read="r" * 32, change="c" * 32)
PATIENCE_S = HANG_S


def manifest_of(task: Task, *, seed: int = 7, **fields: Any) -> Manifest:
    """A manifest that agrees with a task."""
    fields |= {"parameters": task.count_parameters(), "initial_model_sha256": digest(task.initial_model(seed))}
    return make_manifest(task=task.name, seed=seed, **fields)


def make_run(number: int = 0, *, rounds: int = 2, **fields: Any) -> Manifest:
    """A small run; another number makes it another run."""
    metrics = tuple(map(MetricClaim.of, TASK.metrics))
    return manifest_of(TASK, rounds=rounds, nonce=f"{number:032x}", **{"metrics": metrics, **fields})


class LiveCoordinator:
    """All parties of `make_run`, until it is closed; `silent` are pairs of a client's index and a round."""

    def __init__(self, folder: Path, *silent: tuple[int, int]) -> None:
        self.silence = Silence(*silent)
        self.folder = folder
        for right in ("read", "change"):
            write_private(self.token_file(right), f"{getattr(TOKENS, right)}\n")
        self.url = ""
        self._broker = MemoryBroker()
        self._port = 0
        self._seen: dict[str, set[str]] = defaultdict(set)
        self._news = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="federation")
        self._stack: AsyncExitStack | None = None
        self._federation: Federation | None = None
        self._thread.start()

    def token_file(self, right: str = "change") -> Path:
        return self.folder / f"{right}.token"

    def options(self, right: str = "change") -> tuple[str | Path, ...]:
        """Its address and a token for it, as options of the command."""
        return "--url", self.url, "--token-file", self.token_file(right)

    def manifest_file(self, manifest: Manifest) -> Path:
        path = self.folder / f"{manifest.run_id[:12]}.json"
        path.write_text(manifest.model_dump_json(), encoding="utf-8")
        return path

    def start(self) -> None:
        """Start every party, on the port of the time before."""
        self.call(self._start())

    def stop(self) -> None:
        """Stop every party; what they keep stays."""
        self.call(self._stop())

    def close(self) -> None:
        self.silence.lift_all()
        try:
            self.stop()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE_S)
            self._loop.close()

    def submit(self, manifest: Manifest) -> RunId:
        assert self._federation is not None
        return self.call(self._federation.coordinator.submit(manifest))

    def pause(self, run: RunId) -> None:
        assert self._federation is not None
        self.call(self._federation.coordinator.pause(run))

    def resume(self, run: RunId) -> None:
        assert self._federation is not None
        self.call(self._federation.coordinator.resume(run))

    def wait_until(self, run: str, state: str) -> None:
        """Return when a run has come to a state, or a round: `round 1 released`, `round 2 misses client-3`."""
        with self._news:
            reached = self._news.wait_for(lambda: state in self._seen[run], PATIENCE_S)
        assert reached, f"never {state}; there were {sorted(self._seen[run])}"

    def call(self, work: Coroutine[object, object, T]) -> T:
        """Have something done in the federation's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    async def _start(self) -> None:
        manifest = make_run()
        async with AsyncExitStack() as stack:
            self._federation = await stack.enter_async_context(
                start_federation(
                    manifest,
                    parties=parties_of(manifest),
                    folder=self.folder / "parties",
                    load_task=HeldTask(TASK, self.silence).load,
                    demo_seed=1,
                    connect=lambda _, topology: MemoryTransport(self._broker, topology),
                    observer=self._observe,
                )
            )
            listener = listen("127.0.0.1", self._port, advice="another test has it")
            self._port = listener.getsockname()[1]
            self.url = await stack.enter_async_context(answering(self._federation.coordinator, TOKENS, listener))
            self._stack = stack.pop_all()

    async def _stop(self) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()

    def _observe(self, moment: Transition) -> None:
        place = f"round {moment.key.round} " if moment.key.round else ""
        with self._news:
            seen = self._seen[moment.key.run]
            seen.add(f"{place}{moment.after.value}")
            if isinstance(moment.data, CoordinatorRound) and moment.data.records:
                seen.add(f"{place}misses {', '.join(moment.data.missing())}")
            self._news.notify_all()


@contextmanager
def live_coordinator(folder: Path, *silent: tuple[int, int]) -> Iterator[LiveCoordinator]:
    """A federation for the length of a test."""
    live = LiveCoordinator(folder, *silent)
    try:
        live.start()
        yield live
    finally:
        live.close()
