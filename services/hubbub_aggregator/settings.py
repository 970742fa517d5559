"""The settings of an aggregator, which its workers share: HUBBUB_AGGREGATOR_*."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from hubbub.runtime.settings import ProbedSettings
from hubbub.transport.topology import SLOTS


class AggregatorSettings(ProbedSettings):
    """What an aggregator needs beyond the broker: its operator's policy."""

    model_config = SettingsConfigDict(env_prefix="HUBBUB_AGGREGATOR_")

    policy: Path
    """Which runs this aggregator serves, whatever a coordinator asks; it pins the roster."""

    workers: int = Field(default=0, ge=0, le=SLOTS)
    """Processes among which chunks are divided, for models that outgrow one; with 0 this process does all. The
    broker must be told the same number: `hubbub roster broker-config --workers`."""

    @property
    def work_queues(self) -> int:
        """Every worker has one."""
        return self.workers
