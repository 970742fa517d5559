"""The settings of an aggregator, which its workers share: HUBBUB_AGGREGATOR_*."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from hubbub.runtime.settings import PinningSettings, ProbedSettings
from hubbub.transport.topology import SLOTS


class AggregatorSettings(ProbedSettings, PinningSettings):
    """What an aggregator needs."""

    model_config = SettingsConfigDict(env_prefix="HUBBUB_AGGREGATOR_")

    workers: int = Field(default=0, ge=0, le=SLOTS)
    """Processes among which chunks are divided, for models that outgrow one; with 0 this process does all. The
    broker must be told the same number: `hubbub roster broker-config --workers`."""

    @property
    def work_queues(self) -> int:
        """Every worker has one."""
        return self.workers
