"""The settings class of each service, by the service's name."""

from hubbub.runtime.settings import ServiceSettings
from hubbub_aggregator.__main__ import AggregatorSettings
from hubbub_coordinator.__main__ import CoordinatorSettings
from hubbub_trainer.__main__ import TrainerSettings

SETTINGS: dict[str, type[ServiceSettings]] = {
    "coordinator": CoordinatorSettings,
    "aggregator": AggregatorSettings,
    "trainer": TrainerSettings,
}
