"""Settings of every service: from the environment, and from a TOML file if one is named.

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
    """Settings of every party."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read the caller's values first, then the environment, then the file that it names."""
        del dotenv_settings, file_secret_settings
        file = os.environ.get(cls.variable("config_file"))
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=file)

    @classmethod
    def variable(cls, field: str) -> str:
        """Return the environment variable of a field."""
        return f"{cls.model_config.get('env_prefix', '')}{field.upper()}"

    identity: Path
    """This party's private identity file: its name, its key and its password at the broker."""
    roster: Path
    """Everybody's public identities."""
    amqp_url: SecretStr
    """The broker, amqps://host:port/vhost; for a cluster, the URLs of several nodes, separated by commas. User and
    password are the identity's unless the URL has its own."""
    amqp_ca_file: Path | None = None
    """CA of the broker's certificate, if it is not one of the system's authorities."""
    amqp_cert_file: Path | None = None
    """This party's certificate, if the broker asks for one."""
    amqp_key_file: Path | None = None
    """The key to this party's certificate, not encrypted."""
    proxy: SecretStr | None = None
    """Proxy on the way to the broker: http://host:port or socks5://host:port, with user:password@ before the host
    if it asks for a login. If not set, the variables HTTPS_PROXY, ALL_PROXY and NO_PROXY are looked at, except for
    a broker on this machine."""
    folder: Path
    """Folder for the state that must survive a restart."""
    new_state: bool = False
    """Allows an empty folder: on the first start, or when the owner knows that all state is lost."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level of the lines in the log."""


class ProbedSettings(ServiceSettings):
    """Settings of a service without a web interface: the address of health and metrics."""

    metrics_host: str = "127.0.0.1"
    """Address of health and metrics; everybody who reaches it may read them."""
    metrics_port: int | None = Field(default=None, ge=0, le=65_535)
    """Port of health and metrics. There are none without it; 0 takes any free port, which is logged."""


class PinningSettings(ServiceSettings):
    """Settings of a service without a policy: they pin the roster."""

    roster_sha256: Digest
    """The roster's digest, as all parties compared it over another channel."""


S = TypeVar("S", bound=ServiceSettings)


def load_settings(model: type[S]) -> S:
    """Read settings from the environment; `<PREFIX>CONFIG_FILE` names a TOML file with any of them."""
    known = [model.variable(field) for field in model.model_fields]
    given = {variable for variable in os.environ if variable.startswith(model.variable(""))}
    # pydantic would ignore a variable that is misspelt.
    if unknown := sorted(given - {*known, model.variable("config_file")}):
        raise ConfigurationError(f"{', '.join(unknown)}: no such setting; there are {', '.join(known)}")
    _check_file(os.environ.get(model.variable("config_file")))
    try:
        return model()
    except ValidationError as error:
        # The variable and the complaint; never the value, which may be a password.
        complaints = (
            f"{model.variable('.'.join(map(str, item['loc'])))}: {item['msg']}"
            for item in error.errors(include_url=False, include_input=False)
        )
        raise ConfigurationError("; ".join(complaints)) from None


def _check_file(name: str | None) -> None:
    if not name:
        return
    try:
        tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"the settings file {name} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the settings file {name} is not TOML: {error}") from None
