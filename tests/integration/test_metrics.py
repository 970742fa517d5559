"""Health and metrics of services that run as processes of their own, over a real RabbitMQ."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hubbub.ids import PartyId, Role
from hubbub.transport.topology import inbox, topology_for
from support.broker import declared
from support.fault_proxy import FaultProxy
from support.party_files import write_party_files
from support.processes import ProcessFederation, ServiceProcess, SharedBroker
from support.twins import new_party

pytestmark = pytest.mark.broker

HEADING = "health and metrics at "
ROUNDS = 2
SHARES = ("dense-share-chunk", "share-seed")


class Metrics:
    """All metrics of one party."""

    def __init__(self, text: str) -> None:
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def total(self, name: str, **labels: str) -> float:
        """A metric, added up over all labels that are not given."""
        return sum(
            sample.value
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def names(self) -> set[str]:
        return {sample.name for sample in self._samples}


# While the broker is away ------------------------------------------------------------------------------------


async def test_a_party_is_ready_while_the_broker_is_there_and_alive_all_the_time(
    amqp_url: str, tmp_path: Path
) -> None:
    name = new_party("aggregator")
    files = write_party_files(tmp_path / "files", {name: Role.AGGREGATOR})
    parts = urlsplit(amqp_url)
    credentials = parts.netloc.rpartition("@")[0]
    async with (
        declared(amqp_url, topology_for(name, Role.AGGREGATOR)),
        FaultProxy(parts.hostname or "", parts.port or 5672) as proxy,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        await proxy.refuse()
        settings = {
            **files.settings_for(name),
            "amqp_url": parts._replace(netloc=f"{credentials}@127.0.0.1:{proxy.port}").geturl(),
            "metrics_port": "0",
        }
        with ExitStack() as stack:
            service = ServiceProcess(Role.AGGREGATOR, name, tmp_path, settings)
            stack.callback(service.kill)
            heard = await asyncio.to_thread(service.wait_for_message, HEADING)
            page = heard.removeprefix(HEADING)

            async def wait_for(status: int, named: str = "") -> httpx.Response:
                # Another process tells nobody when it becomes ready, and it loses its connections one by one.
                answer = await client.get(f"{page}/readyz")
                while answer.status_code != status or named not in answer.text:
                    await asyncio.sleep(0.05)
                    answer = await client.get(f"{page}/readyz")
                assert (await client.get(f"{page}/healthz")).status_code == httpx.codes.OK
                return answer

            before = await wait_for(httpx.codes.SERVICE_UNAVAILABLE)
            await proxy.resume()
            await wait_for(httpx.codes.OK)
            first = Metrics((await client.get(f"{page}/metrics")).text)
            await proxy.refuse()
            away = await wait_for(httpx.codes.SERVICE_UNAVAILABLE, inbox(name))
            await proxy.resume()
            await wait_for(httpx.codes.OK)
            last = Metrics((await client.get(f"{page}/metrics")).text)
            code = await asyncio.to_thread(service.stop)

    assert before.json()["detail"] == "there is no connection to the broker yet"
    assert inbox(name) in away.json()["detail"]
    assert away.headers["content-type"] == "application/problem+json"
    for metrics in (first, last):
        assert (metrics.total("hubbub_ready"), metrics.total("hubbub_broker_connected")) == (1, 1)
    assert first.total("hubbub_reconnects_total") == 0
    assert last.total("hubbub_reconnects_total") >= 1
    assert code == 0


# A whole run -------------------------------------------------------------------------------------------------


class ProbedFederation(ProcessFederation):
    """Processes that say how they are."""

    def _settings(self, name: PartyId) -> dict[str, str]:
        settings = super()._settings(name)
        return settings if self.roles[name] is Role.COORDINATOR else {**settings, "metrics_port": "0"}

    def scrape(self, name: PartyId) -> Metrics:
        """A party's metrics; of the coordinator, those for whoever shows its token."""
        if self.roles[name] is Role.COORDINATOR:
            headers = {"authorization": f"Bearer {self._files.tokens.read}"}
            answer = self._http.get(f"{self.url}/metrics", headers=headers)
        else:
            page = self.services[name].wait_for_message(HEADING).removeprefix(HEADING)
            answer = self._http.get(f"{page}/metrics")
        assert answer.status_code == httpx.codes.OK
        return Metrics(answer.text)


@pytest.fixture(scope="module")
def scraped(amqp_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Role, list[Metrics]]]:
    """All parties' metrics after a run, by role."""
    folder = tmp_path_factory.mktemp("metrics")
    with ProbedFederation(SharedBroker(amqp_url), folder, trainers=2, demo_seed=3) as federation:
        federation.finish(federation.submit(federation.draw_up(rounds=ROUNDS)))
        found: dict[Role, list[Metrics]] = {role: [] for role in Role}
        for name, role in federation.roles.items():
            found[role].append(federation.scrape(name))
        yield found


def add_up(parties: Sequence[Metrics], name: str, **labels: str) -> float:
    return sum(metrics.total(name, **labels) for metrics in parties)


@pytest.mark.parametrize("phase", ["union", "signs"])
def test_what_one_side_sent_the_other_received(scraped: dict[Role, list[Metrics]], phase: str) -> None:
    clients, servers = scraped[Role.CLIENT], scraped[Role.AGGREGATOR]
    flows = (
        *((kind, clients, servers) for kind in SHARES),
        ("partial-chunk", servers, servers),
        ("masked-chunk", servers, clients),
    )

    for kind, senders, recipients in flows:
        sent = add_up(senders, "hubbub_wire_bytes_total", direction="sent", kind=kind, phase=phase)
        received = add_up(recipients, "hubbub_wire_bytes_total", direction="received", kind=kind, phase=phase)
        assert sent == received > 0
        assert add_up(senders, "hubbub_messages_sent_total", kind=kind) == add_up(
            recipients, "hubbub_messages_received_total", kind=kind
        )


def test_the_coordinator_is_told_what_the_parties_counted(scraped: dict[Role, list[Metrics]]) -> None:
    (coordinator,) = scraped[Role.COORDINATOR]

    for directions, senders in ((["up"], Role.CLIENT), (["down", "across"], Role.AGGREGATOR)):
        for name in ("union", "signs", "factors", "tags"):
            sent = add_up(scraped[senders], "hubbub_payload_bytes_total", direction="sent", counts_as=name)
            reported = [
                coordinator.total("hubbub_reported_payload_bytes_total", direction=each, counts_as=name)
                for each in directions
            ]
            assert sent == sum(reported)
            assert all(reported)
    for direction, kinds in (("up", SHARES), ("across", ["partial-chunk"])):
        arrived = sum(
            add_up(scraped[Role.AGGREGATOR], "hubbub_wire_bytes_total", direction="received", kind=kind)
            for kind in kinds
        )
        assert arrived == coordinator.total("hubbub_reported_wire_bytes_total", direction=direction)


def test_every_party_is_ready_and_has_counted_the_run(scraped: dict[Role, list[Metrics]]) -> None:
    (coordinator,) = scraped[Role.COORDINATOR]

    for parties in scraped.values():
        assert all(metrics.total("hubbub_ready") == 1 for metrics in parties)
        assert all(metrics.total("hubbub_runs_total") == 1 for metrics in parties)
        # The broker was asked, and says that nothing waits.
        assert all("hubbub_inbox_messages" in metrics.names() for metrics in parties)
        assert add_up(parties, "hubbub_internal_errors_total") == 0
        assert add_up(parties, "hubbub_messages_rejected_total") == 0
    assert coordinator.total("hubbub_rounds_total", outcome="released") == ROUNDS
    assert coordinator.total("hubbub_round_seconds_count", outcome="released") == ROUNDS
    assert add_up(scraped[Role.CLIENT], "hubbub_rounds_total", outcome="applied") == 2 * ROUNDS
    assert add_up(scraped[Role.AGGREGATOR], "hubbub_job_seconds_count", what="SumAndRelease") == 2 * 3 * ROUNDS
