"""The settings of an aggregator: HUBBUB_AGGREGATOR_*."""

from pathlib import Path

from pydantic_settings import SettingsConfigDict

from hubbub.runtime.settings import ProbedSettings


class AggregatorSettings(ProbedSettings):
    """What an aggregator needs beyond the broker: its operator's policy."""

    model_config = SettingsConfigDict(env_prefix="HUBBUB_AGGREGATOR_")

    policy: Path
    """Which runs this aggregator serves, whatever a coordinator asks; it pins the roster."""
