"""A Dockerfile's targets: what an engine would know of each image without building it."""

import json
import re
import shlex
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

DOCKERFILE = Path(__file__).parents[2] / "Dockerfile"


@dataclass(frozen=True, slots=True)
class Target:
    """Settings that a container of this image starts with."""

    environment: dict[str, str] = field(default_factory=dict)
    entrypoint: list[str] = field(default_factory=list)
    user: list[str] = field(default_factory=list)


def read_stages(path: Path = DOCKERFILE) -> dict[str, list[tuple[str, str]]]:
    """The instructions of every stage, each with what follows it."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    stages: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word.upper() == "FROM":
            name = rest.split()[-1]
        if word:
            stages.setdefault(name, []).append((word.upper(), rest.strip()))
    return stages


def read_targets(path: Path = DOCKERFILE) -> dict[str, Target]:
    """Every named stage, with what it takes over from the stage that it begins from."""
    targets: dict[str, Target] = {}
    for name, instructions in read_stages(path).items():
        current = targets[name] = Target()
        for word, rest in instructions:
            if word == "FROM":
                before = targets.get(rest.split()[0], Target())
                current = targets[name] = deepcopy(before)
            elif word == "ENV":
                pairs = [part.partition("=") for part in shlex.split(rest)]
                current.environment.update({variable: value for variable, _, value in pairs})
            elif word == "ENTRYPOINT":
                current.entrypoint[:] = json.loads(rest)
            elif word == "USER":
                current.user[:] = [rest]
    return targets
