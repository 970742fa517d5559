"""The settings of an aggregator: HUBBUB_AGGREGATOR_*."""

from pydantic_settings import SettingsConfigDict

from hubbub.runtime.settings import PinningSettings, ProbedSettings


class AggregatorSettings(ProbedSettings, PinningSettings):
    """What an aggregator needs."""

    model_config = SettingsConfigDict(env_prefix="HUBBUB_AGGREGATOR_")
