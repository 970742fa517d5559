"""A Dockerfile's targets: what an engine would know of each image without building it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

DOCKERFILE = Path(__file__).parents[2] / "Dockerfile"


@dataclass(frozen=True, slots=True)
class Target:
    """What a container of this image starts with."""

    environment: dict[str, str] = field(default_factory=dict)
    entrypoint: list[str] = field(default_factory=list)
    user: list[str] = field(default_factory=list)
    exposed: list[str] = field(default_factory=list)


def read_targets(path: Path = DOCKERFILE) -> dict[str, Target]:
    """Every named stage, with what it takes over from the stage that it begins from."""
    targets: dict[str, Target] = {}
    current = Target()
    for instruction, rest in _read_instructions(path.read_text(encoding="utf-8")):
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            before = targets.get(base, Target())
            current = Target(
                dict(before.environment), list(before.entrypoint), list(before.user), list(before.exposed)
            )
            targets[name] = current
        elif instruction == "ENV":
            pairs = [part.partition("=") for part in shlex.split(rest)]
            current.environment.update({name: value for name, _, value in pairs})
        elif instruction == "ENTRYPOINT":
            current.entrypoint[:] = json.loads(rest)
        elif instruction == "USER":
            current.user[:] = [rest]
        elif instruction == "EXPOSE":
            current.exposed.extend(rest.split())
    return targets


def _read_instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n", " ", lines).splitlines():
        if line.strip():
            instruction, _, rest = line.strip().partition(" ")
            yield instruction.upper(), rest.strip()
