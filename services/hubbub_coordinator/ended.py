"""What stays of a round that is over: who took part and what it cost, without the receipts that its orders needed.

There are many such rounds, and all of them stay in memory for whoever asks.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TypeVar, cast

from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import RoundApplied
from hubbub.messages.traffic import Direction, Traffic
from hubbub_coordinator.accounts import split_by_party
from hubbub_coordinator.phases.round import PhaseRecord, Round

H = TypeVar("H", bound=Hashable)

_FIELDS = set(Traffic.model_fields)


class Folder:
    """Makes the rounds of one run small; what is the same in many of them is held once."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._shared: dict[Hashable, Hashable] = {}
        for name in (*manifest.clients, *manifest.aggregators):
            self._share(name)

    def _share(self, value: H) -> H:
        """The one that is held of all that are equal: names, and sets of them."""
        return cast("H", self._shared.setdefault(value, value))

    def fold(self, data: Round) -> Round:
        """The same round, as far as anybody will ask about it."""
        reports = {
            digest: RoundApplied(model_hmac=digest, traffic=())
            for digest in {report.model_hmac for report in data.applied.values()}
        }
        claims = {each: each for each in data.reported.values()}
        return replace(
            data,
            manifest=self._manifest,
            records=tuple(self._fold_record(record) for record in data.records),
            members=self._share(data.members),
            score_members=self._share(data.score_members),
            early=(),
            attended={},
            applied={self._share(client): reports[report.model_hmac] for client, report in data.applied.items()},
            reported={self._share(client): claims[each] for client, each in data.reported.items()},
            traffic=tuple(
                (self._share(party), self._count(counts_as, direction, *amounts))
                for (counts_as, party, direction), amounts in split_by_party(data).items()
            ),
        )

    def _fold_record(self, record: PhaseRecord) -> PhaseRecord:
        return replace(
            record,
            receipts={},
            holders={
                self._share(client): self._share(tuple(self._share(server) for server in servers))
                for client, servers in record.delivered.items()
            },
            ended=self._share(record.ended),
        )

    def _count(self, counts_as: str, direction: Direction, payload_bits: int, wire_bytes: int) -> Traffic:
        # Unchecked, because it comes from rows that were checked, and so that all share one set of names.
        return Traffic.model_construct(
            _FIELDS,
            counts_as=self._share(counts_as),
            direction=direction,
            payload_bits=payload_bits,
            wire_bytes=wire_bytes,
        )
