"""Settings that every service has: from the environment, and from a TOML file if one is named.

A value in the environment wins over the file. A wrong value stops the start with one line that names it.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from hubbub.errors import ConfigurationError
from hubbub.messages.manifest import Digest


class ServiceSettings(BaseSettings):
    """What a party needs in order to meet the others."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """First what the caller gives, then the environment, then the file that it names."""
        del dotenv_settings, file_secret_settings
        file = os.environ.get(f"{cls.model_config.get('env_prefix', '')}CONFIG_FILE")
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=file)

    identity: Path
    """This party's private identity file: its name, its key and its password at the broker."""
    roster: Path
    """Everybody's public identities."""
    amqp_url: SecretStr
    """The broker, amqps://host:port/vhost; of a cluster, the URLs of several nodes, separated by commas. User and
    password are the identity's unless the URL has its own."""
    amqp_ca_file: Path | None = None
    """Who vouches for the broker's certificate, where it is not one of the system's authorities."""
    amqp_cert_file: Path | None = None
    """This party's certificate, where the broker asks for one; `amqp_key_file` is the key to it."""
    amqp_key_file: Path | None = None
    folder: Path
    """Where this party keeps what must survive it."""
    new_state: bool = False
    """Whether an empty folder is right: on the first start, or when the owner knows that all is forgotten."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class ProbedSettings(ServiceSettings):
    """Of a service without a web interface: where it says how it is."""

    metrics_host: str = "127.0.0.1"
    """Where health and metrics are answered; whoever reaches it may read them."""
    metrics_port: int | None = Field(default=None, ge=0, le=65_535)
    """Not at all if not given; 0 takes any free port, and the log says which."""


class PinningSettings(ServiceSettings):
    """Of a service without a policy: the roster is pinned among the settings."""

    roster_sha256: Digest
    """The roster's digest, as all parties compared it over another channel."""


S = TypeVar("S", bound=ServiceSettings)


def load_settings(model: type[S]) -> S:
    """Read settings from the environment; `<PREFIX>CONFIG_FILE` names a TOML file with any of them."""
    prefix = model.model_config.get("env_prefix", "")
    _check_names(prefix, [f"{prefix}{field.upper()}" for field in model.model_fields])
    _check_file(os.environ.get(f"{prefix}CONFIG_FILE"))
    try:
        return model()
    except ValidationError as error:
        raise ConfigurationError(_describe(error, prefix)) from None


def _check_names(prefix: str, known: list[str]) -> None:
    """A misspelt variable would be ignored without a word; say it instead."""
    given = [variable for variable in os.environ if variable.startswith(prefix)]
    unknown = sorted(set(given) - {*known, f"{prefix}CONFIG_FILE"})
    if unknown:
        raise ConfigurationError(f"{', '.join(unknown)}: no such setting; there are {', '.join(known)}")


def _check_file(name: str | None) -> None:
    if not name:
        return
    try:
        tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"the settings file {name} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the settings file {name} is not TOML: {error}") from None


def _describe(error: ValidationError, prefix: str) -> str:
    """Name the variable and the complaint; never the value, which may be a password."""
    return "; ".join(
        f"{prefix}{'.'.join(str(part) for part in item['loc']).upper()}: {item['msg']}"
        for item in error.errors(include_url=False, include_input=False)
    )
