"""Endorsements of a run that was never run, by clients whose keys follow from their names."""

from collections.abc import Sequence

from hubbub.messages.manifest import Manifest, Predecessor
from hubbub.trust.succession import EndorsedModel, endorse, gather
from support.builders import make_manifest
from support.parties import identity_of

COMMITMENT = "c" * 64


def endorse_as(
    run: Manifest, names: Sequence[str] | None = None, commitment: str = COMMITMENT
) -> list[EndorsedModel]:
    """What these clients of a run, or all of them, leave when it is completed."""
    return [
        endorse(identity_of(run, name), run, commitment) for name in run.clients if names is None or name in names
    ]


def make_predecessor(*, clients: int = 3, min_clients: int = 3, commitment: str = COMMITMENT) -> Predecessor:
    """A run of `make_manifest`, endorsed by all of its clients."""
    run = make_manifest(clients=clients, min_clients=min_clients)
    return gather(endorse_as(run, commitment=commitment))[1]


def make_successor(*, clients: int = 3, **overrides: object) -> Manifest:
    """A manifest that goes on from that run, with the same clients."""
    fields: dict[str, object] = {
        "initial_model_sha256": COMMITMENT,
        "predecessor": make_predecessor(clients=clients),
    }
    return make_manifest(clients=clients, servers=2, **{**fields, **overrides})
