"""A compose file as the engine reads it: anchors and merges resolved, variables put in, mounts taken apart."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # It ships no types.

from support.program import run_python

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = ROOT / "docker-compose.yml"
_VARIABLE = re.compile(
    r"\$(?:(?P<escaped>\$)|(?P<plain>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)(?:(?P<sign>:?[-?])(?P<rest>[^}]*))?\})"
)
Json = Any  # What YAML gives.


class MissingVariable(ValueError):
    """A variable that the file asks for is not given."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A named volume or a file of the host, and where a container sees it."""

    source: str
    target: str
    read_only: bool

    @property
    def is_volume(self) -> bool:
        return not self.source.startswith((".", "/"))


@dataclass(frozen=True, slots=True)
class Service:
    """One entry under `services`, with what other code needs of it in one form."""

    name: str
    content: Mapping[str, Json]

    @property
    def environment(self) -> Mapping[str, str]:
        return dict(self.content.get("environment", {}))

    @property
    def mounts(self) -> Sequence[Mount]:
        return [_read_mount(text) for text in self.content.get("volumes", ())]

    @property
    def networks(self) -> Sequence[str]:
        return list(self.content.get("networks", ()))

    @property
    def profiles(self) -> Sequence[str]:
        return list(self.content.get("profiles", ()))

    @property
    def depends_on(self) -> Mapping[str, Mapping[str, Json]]:
        return dict(self.content.get("depends_on", {}))

    @property
    def tmpfs(self) -> Sequence[str]:
        return [text.partition(":")[0] for text in self.content.get("tmpfs", ())]

    @property
    def target(self) -> str | None:
        """The target of the Dockerfile that its image is built from, if the image is ours."""
        name, _, _ = str(self.content["image"]).partition(":")
        return name.removeprefix("hubbub-") if name.startswith("hubbub-") else None

    @property
    def probe(self) -> list[str]:
        """The command of its health check."""
        command: list[str] = self.content["healthcheck"]["test"]
        assert command[0] == "CMD", "a shell in an image is one thing more"
        return command[1:]


def read_compose(variables: Mapping[str, str] | None = None, path: Path = COMPOSE_FILE) -> dict[str, Json]:
    """The whole file, with these variables in the environment."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {name: _put_in(value, variables or {}) for name, value in content.items() if not name.startswith("x-")}


def read_services(
    variables: Mapping[str, str] | None = None, profiles: Sequence[str] = (), path: Path = COMPOSE_FILE
) -> dict[str, Service]:
    """The services that these profiles start."""
    services = [Service(name, content) for name, content in read_compose(variables, path)["services"].items()]
    chosen = [each for each in services if not each.profiles or set(each.profiles) & set(profiles)]
    return {each.name: each for each in chosen}


def check_compose_specification(path: Path) -> None:
    done = run_python("-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", path)
    assert done.returncode == 0, done.stdout


def read_env_file(path: Path) -> dict[str, str]:
    """The variables that `--env-file` gives."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def put_in(text: str, variables: Mapping[str, str]) -> str:
    """Put variables in as compose does: `$X`, `${X}`, `${X:-default}`, `${X-default}`, `${X:?complaint}`, `$$`."""

    def replace(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "$"
        value, sign = variables.get(match["plain"] or match["name"]), match["sign"] or ""
        missing = not value if sign.startswith(":") else value is None
        if missing and sign.endswith("?"):
            raise MissingVariable(f"{match['name']}: {match['rest']}")
        return (match["rest"] if sign else "") if missing else str(value)

    return _VARIABLE.sub(replace, text)


def _put_in(value: Json, variables: Mapping[str, str]) -> Json:
    if isinstance(value, str):
        return put_in(value, variables)
    if isinstance(value, dict):
        return {key: _put_in(each, variables) for key, each in value.items()}
    return [_put_in(each, variables) for each in value] if isinstance(value, list) else value


def _read_mount(text: str) -> Mount:
    source, target, *options = text.split(":")
    assert options in ([], ["ro"]), text
    return Mount(source, target, read_only=bool(options))
