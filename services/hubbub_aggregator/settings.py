"""Settings of an aggregator: HUBBUB_AGGREGATOR_*."""

from pathlib import Path

from pydantic_settings import SettingsConfigDict

from hubbub.runtime.settings import ProbedSettings


class AggregatorSettings(ProbedSettings):
    """Settings of an aggregator beside those of every service: its operator's policy."""

    model_config = SettingsConfigDict(env_prefix="HUBBUB_AGGREGATOR_")

    policy: Path
    """The policy file: limits on the runs that this aggregator serves. It pins the roster."""
