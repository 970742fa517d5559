"""What every message has in common.

A message is a claim: it says what its sender asserts, in types that are checked when it is decoded. Whether
it is true, and whether it may be said now, is decided at the edge of the service that receives it.
"""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from hubbub.ids import Role


class Claim(BaseModel):
    """A frozen record that refuses unknown fields and does not guess types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants")


class Message(Claim):
    """The body of an envelope; a subclass says who may send it and who may receive it."""

    kind: ClassVar[str]
    senders: ClassVar[frozenset[Role]]
    recipients: ClassVar[frozenset[Role]]


COORDINATOR = frozenset({Role.COORDINATOR})
AGGREGATOR = frozenset({Role.AGGREGATOR})
CLIENT = frozenset({Role.CLIENT})
PARTICIPANT = frozenset({Role.AGGREGATOR, Role.CLIENT})
