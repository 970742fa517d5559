"""The dashboard in a real browser, on a federation of real processes over RabbitMQ."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect
from typer.testing import CliRunner

from hubbub.ids import PartyId, RunId
from hubbub.messages.manifest import Manifest
from hubbub.protocol.masks import recommend_rate
from hubbub.run_request import RunRequest
from hubbub_cli.main import app
from support.browser import WAIT_MS, ColourScheme, NoBrowserError, Watch, axe, chromium, overflow, watched_page
from support.processes import ProcessFederation, SharedBroker

pytestmark = pytest.mark.broker
expect.set_options(timeout=WAIT_MS)

PHONE: ViewportSize = {"width": 360, "height": 740}
COLOURS: tuple[ColourScheme, ...] = ("light", "dark")
PATIENCE_S = 7.0
"""The time of a phase where somebody is missing: the page calls nobody late who is waited for less than 5 s."""


class SteadyFederation(ProcessFederation):
    """One whose coordinator comes back where it was: a page that is open knows no other address."""

    port = "0"

    def _settings(self, name: PartyId) -> dict[str, str]:
        settings = super()._settings(name)
        return settings | {"port": self.port} if name == self.coordinator_name else settings

    def keep_port(self) -> None:
        self.port = self.url.rsplit(":", 1)[1]

    @property
    def change_token(self) -> str:
        return self._files.tokens.change

    @property
    def roster_path(self) -> Path:
        return self._files.roster

    def read(self, path: str) -> dict[str, Any]:
        """The interface's answer, as it is."""
        answer = httpx.get(
            f"{self.url}/api/v1/{path}",
            headers={"Authorization": f"Bearer {self._files.tokens.read}"},
            trust_env=False,
        )
        found: dict[str, Any] = answer.raise_for_status().json()
        return found


@dataclass(frozen=True)
class Look:
    """Faults of a page at first sight."""

    violations: list[str]
    too_wide: int


def look_at(page: Page) -> Look:
    return Look(axe(page), overflow(page))


@dataclass(frozen=True)
class Stage:
    """A federation, a browser, and how the page looked before anything had run."""

    federation: SteadyFederation
    browser: Browser
    empty: dict[tuple[ColourScheme, str], Look]

    @contextmanager
    def page(self, at: str = "/", *, colours: ColourScheme = "light") -> Iterator[tuple[Page, Watch]]:
        """The page, with the change token given to it."""
        with watched_page(self.browser, self.federation.url, colours=colours) as (page, watch):
            page.goto(at)
            page.get_by_label("Token", exact=True).fill(self.federation.change_token)
            page.get_by_role("button", name="Use this token").click()
            expect(page.get_by_text("Live", exact=True)).to_be_visible()
            yield page, watch


@pytest.fixture(scope="module")
def stage(amqp_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("browser")
    # The browser within the federation: what prepares and clears the broker runs an event loop of its own.
    with SteadyFederation(SharedBroker(amqp_url), folder, trainers=3, demo_seed=3) as federation:
        federation.keep_port()
        try:
            with chromium() as browser:
                empty: dict[tuple[ColourScheme, str], Look] = {}
                yield from look_around(Stage(federation, browser, empty))
        except NoBrowserError as error:
            pytest.fail(str(error), pytrace=False)


def look_around(stage: Stage) -> Iterator[Stage]:
    """Look at the page while there is no run: no test can, once another has begun one."""
    for colours in COLOURS:
        with watched_page(stage.browser, stage.federation.url, colours=colours) as (page, watch):
            page.goto("/")
            expect(page.get_by_role("dialog", name="Access token")).to_be_visible()
            stage.empty[colours, "locked"] = look_at(page)
            page.get_by_label("Token", exact=True).fill(stage.federation.change_token)
            page.get_by_role("button", name="Use this token").click()
            expect(page.get_by_role("heading", name="Nothing has run here yet")).to_be_visible()
            stage.empty[colours, "empty"] = look_at(page)
            page.set_viewport_size(PHONE)
            stage.empty[colours, "empty phone"] = Look([], overflow(page))
            watch.check()
    yield stage


def draw_up(stage: Stage, rounds: int, **changes: object) -> Manifest:
    """A run whose rounds take long enough to be seen."""
    return stage.federation.draw_up(rounds=rounds, **{"min_clients": 2, "local_steps": 150, **changes})


def paste(page: Page, manifest: Manifest) -> None:
    """Start a run in the dialog that asks for a manifest."""
    page.get_by_role("banner").get_by_role("button", name="Start a run").click()
    dialog = page.get_by_role("dialog", name="Start a run")
    dialog.get_by_role("button", name="Manifest, for experts").click()
    dialog.get_by_label("or its text").fill(manifest.model_dump_json())
    dialog.get_by_role("button", name="Start", exact=True).click()
    expect(dialog).to_be_hidden()


@contextmanager
def prepared(stage: Stage, run: RunId) -> Iterator[None]:
    """Have a run that is submitted within stand still before its first round, however fast the machine is."""
    federation = stage.federation
    with federation.services[federation.trainer_names[0]].paused():
        yield
        federation.order(run, "pause")
    federation.wait_for(run, lambda view: view.state == "paused")


@contextmanager
def held(stage: Stage, run: RunId) -> Iterator[PartyId]:
    """Go on with a run that stands still, with a trainer that does not move, so that its round stays open."""
    federation = stage.federation
    name = federation.trainer_names[0]
    with federation.services[name].paused():
        federation.order(run, "resume")
        federation.wait_for(run, lambda view: view.waiting_for == [name])
        yield name


@contextmanager
def dead(stage: Stage, name: PartyId) -> Iterator[None]:
    """Have a party killed, and started again however this ends: others come after."""
    stage.federation.kill(name)
    stage.federation.stopped.add(name)
    try:
        yield
    finally:
        stage.federation.restart(name)
        stage.federation.stopped.discard(name)


# What the page must say, from what the interface says ---------------------------------------------------


def fixed(value: float, digits: int) -> str:
    """As JavaScript's toFixed has it, which rounds ties up."""
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP))


def show_percent(value: float) -> str:
    return f"{fixed(100 * value, 2)} %"


def show_digits(value: float) -> str:
    """Four of them, without zeros at the end."""
    return f"{value:.4g}"


def show_bytes(count: float) -> str:
    unit = 0
    while count >= 1024:
        count, unit = count / 1024, unit + 1
    digits = 0 if unit == 0 else 2 if count < 100 else 1
    return f"{fixed(count, digits)} {('B', 'KB', 'MB')[unit]}"


def figure(page: Page, name: str) -> Locator:
    """The large number under a heading."""
    term = page.get_by_role("term").get_by_text(name, exact=True)
    return page.locator("dl > div").filter(has=term).get_by_role("definition").first


def expect_completed(page: Page) -> None:
    """Wait for the end of the run; until its rounds are read, the picture of the parties says the word too."""
    article = page.get_by_role("article")
    expect(article.locator("#run-sub").get_by_text("completed", exact=True)).to_be_visible()


def check_numbers(stage: Stage, page: Page, run: RunId) -> None:
    """Every number that the page has of a run, against the interface; the run stands still meanwhile."""
    view = stage.federation.read(f"runs/{run}")
    rounds = stage.federation.read(f"runs/{run}/rounds")["items"]
    events = stage.federation.read(f"events?run={run}&limit=1000")["items"]
    union = [each["union_size"] for each in rounds if each["union_size"] is not None]
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{view['task']} · {view['strategy']}")
    expect(figure(page, "Round")).to_have_text(f"{view['round']} of {view['rounds_wanted']}")
    expect(figure(page, "Accuracy")).to_have_text(show_percent(view["metrics"]["accuracy"]))
    expect(figure(page, "Sent so far")).to_have_text(show_bytes(sum(each["all_wire_bytes"] for each in rounds)))
    check_comparison(page, view, rounds)
    expect(figure(page, "Union |V|")).to_have_text(f"{union[-1]:,}")
    expect(page.get_by_role("region", name="Events").get_by_text(f"{len(events)} events")).to_be_visible()
    check_chart(page, [each for each in rounds if each["metrics"]])
    check_traffic(page, stage.federation.read(f"runs/{run}/cost")["by_party"])


def check_comparison(page: Page, view: dict[str, Any], rounds: list[dict[str, Any]]) -> None:
    """The run is compared with FedAvg by the bytes of all messages; payload is a remark."""
    ended = [each for each in rounds if each["ended_at_s"] is not None]
    sent = sum(each["all_wire_bytes"] for each in ended)
    fedavg = sum(each["fedavg_wire_bytes"] for each in ended if each["state"] == "released")
    payload, gain, verdict = show_bytes(view["payload_bits"] / 8), "this is uncompressed FedAvg", ""
    if view["no_gain"]:
        times = f"{fixed(fedavg / sent, 1)} × less"
        is_less = sent < fedavg
        gain = f"{times} than uncompressed FedAvg" if is_less else view["no_gain"]
        verdict = f": {times}" if is_less else f". {view['no_gain']}"
    expect(page.locator(".figure-bytes .figure-note")).to_have_text(f"{gain}; payload {payload}")
    card = page.get_by_role("region", name="Bytes per round", exact=True)
    card.scroll_into_view_if_needed()
    expect(card).to_contain_text(
        f"All messages of these rounds take {show_bytes(sent)}, and those of uncompressed FedAvg would take "
        f"{show_bytes(fedavg)}{verdict}. Payload alone is {payload}, and FedAvg's "
    )


def check_chart(page: Page, rounds: list[dict[str, Any]]) -> None:
    """The points of a chart are the numbers of the rounds, and its table says the same."""
    card = page.get_by_role("region", name="Accuracy", exact=True)
    card.scroll_into_view_if_needed()
    plot = card.get_by_role("img", name=re.compile("^Accuracy"))
    expect(plot.locator("svg").first).to_be_visible()
    expect(card.get_by_text(f"over {len(rounds)} round")).to_be_visible()
    scores = [each["metrics"] for each in rounds]
    drawn = plot.evaluate("plot => plot.data.slice(0, 2).map(({ x, y }) => ({ x: [...x], y: [...y] }))")
    assert drawn == [
        {"x": [each["round"] for each in rounds], "y": pytest.approx([100 * each["accuracy"] for each in scores])},
        {"x": [each["round"] for each in rounds], "y": pytest.approx([each["loss"] for each in scores])},
    ]
    ticks = plot.locator(".xtick text").all_text_contents()
    assert len(set(ticks)) == len(ticks), "a round is named twice"
    toggle = card.get_by_role("button", name=re.compile("Table"))
    toggle.click()
    # Playwright's `to_have_text` takes all kinds of spaces for one, as people do.
    expect(card.get_by_role("row")).to_have_text(
        ["RoundAccuracyloss"]
        + [
            f"{each['round']}{show_percent(each['metrics']['accuracy'])}{show_digits(each['metrics']['loss'])}"
            for each in rounds
        ]
    )
    toggle.click()


def check_traffic(page: Page, rows: list[dict[str, Any]]) -> None:
    table = page.get_by_role("region", name="Traffic by party").get_by_role("table")
    there = {row["direction"] for row in rows}
    ways = [way for way in ("up", "across", "down") if way in there]
    for party in {row["party"] for row in rows}:
        said = [
            f"{show_bytes(sum(row['wire_bytes'] for row in own))}"
            f"{show_bytes(sum(row['payload_bits'] for row in own) / 8)} of payload"
            for way in ways
            for own in ([row for row in rows if (row["party"], row["direction"]) == (party, way)],)
        ]
        line = table.get_by_role("row").filter(has=page.get_by_text(party, exact=True))
        expect(line).to_have_text(party + "".join(said))


# A run, from its start to its end -----------------------------------------------------------------------


def test_a_run_started_from_the_page_is_paused_resumed_and_followed_to_its_end(stage: Stage) -> None:
    manifest = draw_up(stage, rounds=6)
    run = manifest.run_id
    with stage.page() as (page, watch):
        with prepared(stage, run):
            paste(page, manifest)
        steering = page.get_by_role("group", name="Steer this run")
        with held(stage, run) as late:
            expect(page.get_by_text(f"Waiting for {late} to")).to_be_visible()
            assert axe(page) == []
            steering.get_by_role("button", name="Pause").click()
            expect(page.get_by_text("pausing after this round")).to_be_visible()
        expect(page.get_by_text("Paused. No round is open")).to_be_visible()
        check_numbers(stage, page, run)
        assert stage.federation.read_run(run).state == "paused"

        steering.get_by_role("button", name="Resume").click()
        expect_completed(page)
        check_numbers(stage, page, run)
        watch.check()
    assert stage.federation.read_run(run).rounds_released == 6


@pytest.mark.parametrize(("no_gain", "share"), [("Too small", 0.9), ("Too small", 1), ("", 2)])
def test_a_run_that_sends_as_much_as_fedavg_is_said_to_and_has_no_ratio(
    stage: Stage, no_gain: str, share: float
) -> None:
    """Models here gain, so the page is given other answers of the interface."""
    federation = stage.federation
    run = federation.submit(draw_up(stage, rounds=1, local_steps=5))
    federation.wait_for(run, lambda view: view.state == "completed")
    view = federation.read(f"runs/{run}") | {"no_gain": no_gain}
    page_of_rounds = federation.read(f"runs/{run}/rounds")
    (only,) = page_of_rounds["items"]
    only["fedavg_wire_bytes"] = round(share * only["all_wire_bytes"])
    with watched_page(stage.browser, federation.url) as (page, watch):
        page.route(re.compile(rf"/runs/{run}$"), lambda route: route.fulfill(json=view))
        page.route(re.compile(rf"/runs/{run}/rounds"), lambda route: route.fulfill(json=page_of_rounds))
        page.goto(f"/#/runs/{run}")
        page.get_by_label("Token", exact=True).fill(stage.federation.change_token)
        page.get_by_role("button", name="Use this token").click()
        expect_completed(page)
        check_comparison(page, view, page_of_rounds["items"])
        watch.check()


def test_a_run_is_started_with_the_keyboard_alone(stage: Stage) -> None:
    manifest = draw_up(stage, rounds=1)
    with watched_page(stage.browser, stage.federation.url) as (page, watch):
        page.goto("/")
        expect(page.get_by_label("Token", exact=True)).to_be_focused()
        page.keyboard.insert_text(stage.federation.change_token)
        page.keyboard.press("Enter")
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        tab_to(page, page.get_by_role("banner").get_by_role("button", name="Start a run"))
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="Start a run")
        tab_to(page, dialog.get_by_role("button", name="Manifest, for experts"))
        page.keyboard.press("Enter")
        tab_to(page, dialog.get_by_label("or its text"))
        page.keyboard.insert_text(manifest.model_dump_json())
        tab_to(page, dialog.get_by_role("button", name="Start", exact=True))
        page.keyboard.press("Enter")

        expect_completed(page)
        expect(page).to_have_url(re.compile(f"{manifest.run_id}$"))
        watch.check()


def test_the_form_writes_a_request_and_says_what_the_run_will_cost_and_who_will_see_what(
    stage: Stage, tmp_path: Path
) -> None:
    first = stage.federation.submit(draw_up(stage, rounds=1, local_steps=5, rho=0.1, learning_rate=0.01))
    stage.federation.wait_for(first, lambda view: view.state == "completed")
    manifest = stage.federation.read(f"runs/{first}")["manifest"]
    with stage.page(f"/#/runs/{first}") as (page, watch):
        expect(page.locator("#run-sub").get_by_text(first[:10])).to_be_visible()
        page.get_by_role("group", name="Steer this run").get_by_role("button", name="Same again").click()
        dialog = page.get_by_role("dialog", name="Start a run")
        asked = {
            "strategy": manifest["strategy"],
            "parameters": manifest["parameters"],
            "clients": 3,
            "servers": 2,
        }
        plan = stage.federation.read(f"plan?{urlencode(asked)}")
        dialog.get_by_label("Rounds").fill("7")
        expect(dialog.get_by_role("status")).to_contain_text(f"About {show_bytes(7 * plan['wire_bytes'])} in all")
        expect(dialog.get_by_role("status")).to_contain_text("A server learns: nothing")
        dialog.get_by_label("Strategy").select_option("plaintext-union")
        expect(dialog.get_by_text("! More is seen than sums")).to_be_visible()
        expect(dialog.get_by_role("status")).to_contain_text("A server learns: indices")
        assert axe(page) == []

        written = dialog.get_by_label("The request")
        for strategy, rate in (("shared-mask", recommend_rate(0.01, 0.03)), (manifest["strategy"], 0.01)):
            dialog.get_by_label("Strategy").select_option(strategy)
            request = RunRequest.model_validate_json(written.input_value())
            assert (request.options.strategy, request.options.learning_rate) == (strategy, rate)
            assert request.options.rho is None, "each strategy has its usual one"
        with page.expect_download() as download:
            dialog.get_by_role("button", name="Save the request").click()
        file = tmp_path / "request.json"
        download.value.save_as(file)
        watch.check()

    roster = str(stage.federation.roster_path)
    completed = CliRunner().invoke(app, ["manifest", "new", "--roster", roster, "--from", str(file)])
    assert completed.exit_code == 0, completed.output
    again = json.loads(completed.stdout)
    changed = {name for name in again.keys() | manifest.keys() if again.get(name) != manifest.get(name)}
    assert changed == {"rounds", "seed", "initial_model_sha256", "nonce"}


def tab_to(page: Page, wanted: Locator) -> None:
    """Press Tab until it is there, as somebody without a mouse does."""
    for _ in range(40):
        if wanted.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{wanted} cannot be reached with Tab")


NOTICES = """() => { globalThis.Notification = class {
    static permission = "granted";
    static requestPermission = async () => "granted";
    constructor(title, { body }) { document.documentElement.dataset.noticed = `${title}: ${body}`; }
}; }"""
"""In the place of the browser's notifications, which nobody can look at."""


def test_two_runs_are_drawn_together_and_a_run_that_is_refused_is_told_of_wherever_one_looks(stage: Stage) -> None:
    federation = stage.federation
    first, second = (federation.submit(draw_up(stage, rounds=2, local_steps=steps)) for steps in (5, 50))
    for run in (first, second):
        federation.wait_for(run, lambda view: view.state == "completed")
    other = federation.read(f"runs/{second}/rounds")["items"]
    scores = [100 * each["metrics"]["accuracy"] for each in other]
    with stage.page(f"/#/runs/{first}") as (page, watch):
        page.get_by_label("Draw beside it").select_option(second)
        for name in ("Accuracy", "Bytes over time"):
            card = page.get_by_role("region", name=name, exact=True)
            card.scroll_into_view_if_needed()
            expect(card.get_by_text(f"{second[:10]}:")).to_be_visible()
            card.get_by_role("button", name=re.compile("Table")).click()
            expect(card.get_by_role("columnheader").last).to_contain_text(second[:10])
        expect(card.get_by_role("row").nth(2)).to_contain_text(
            show_bytes(sum(each["all_wire_bytes"] for each in other))
        )
        card = page.get_by_role("region", name="Accuracy", exact=True)
        expect(card.get_by_role("row").nth(2)).to_contain_text(show_percent(scores[-1] / 100))
        card.get_by_role("button", name=re.compile("Table")).click()
        plot = card.get_by_role("img", name=re.compile("^Accuracy"))
        expect(plot.locator("svg").first).to_be_visible()
        assert plot.evaluate("plot => [...plot.data[0].y]") == pytest.approx(scores)

        page.evaluate(NOTICES)
        page.get_by_role("button", name="Notify me when a run ends or waits").click()
        refused = federation.submit(draw_up(stage, rounds=1, strategy="shared-mask"))
        expect(page.locator("html")).to_have_attribute("data-noticed", re.compile("the run failed"))
        page.goto(f"/#/runs/{refused}")
        refusals = page.get_by_role("region", name="Refusals by party", exact=True)
        expect(refusals.get_by_role("row").nth(1)).to_have_text(re.compile("^trainer.*policy|^client.*policy"))
        assert axe(page) == []
        watch.check()


# What goes wrong ----------------------------------------------------------------------------------------


def test_a_trainer_that_was_killed_is_shown_as_missing_until_it_is_back(stage: Stage) -> None:
    federation = stage.federation
    lost = federation.trainer_names[2]
    manifest = draw_up(stage, rounds=4, strategy="no-union", phase_timeout_s=PATIENCE_S)
    with stage.page(colours="dark") as (page, watch):
        with prepared(stage, manifest.run_id):
            paste(page, manifest)
        with dead(stage, lost):
            federation.order(manifest.run_id, "resume")
            expect(page.get_by_text(f"Late: waiting for {lost}")).to_be_visible()
            parties = page.get_by_role("region", name="Parties")
            party = parties.get_by_role("img", name=re.compile(f"^{lost}, client"))
            expect(party).to_have_accessible_name(re.compile("Late|missing"))
            assert axe(page) == []
            log = page.get_by_role("region", name="Events")
            expect(log.get_by_text(f"the time for signs is up; {lost} did not deliver")).to_be_visible()
            expect(log.get_by_text(f"signs was closed over 2 of 3 clients, without {lost}")).to_be_visible()
        expect_completed(page)
        clients = page.get_by_role("region", name="Clients by round, as a table")
        expect(clients.get_by_role("row").nth(1)).to_have_text(re.compile(f"^{lost}.*missing"))
        watch.check()
    rounds = federation.read(f"runs/{manifest.run_id}/rounds")["items"]
    assert [lost not in each["members"] for each in rounds].count(True) >= 1
    assert lost in rounds[-1]["members"]


def test_a_run_that_cannot_learn_is_refused_in_the_form_and_one_that_may_not_is_shown_with_a_warning(
    stage: Stage,
) -> None:
    lossy = draw_up(stage, rounds=1, local_steps=5, strategy="sec-union", q=1, rho=0.5)
    empty = lossy.model_copy(update={"cohort": lossy.cohort[:2], "rho": 1.0, "nonce": "e" * 32})
    with watched_page(stage.browser, stage.federation.url) as (page, watch):
        page.goto("/")
        page.get_by_label("Token", exact=True).fill(stage.federation.change_token)
        page.get_by_role("button", name="Use this token").click()
        dialog = page.get_by_role("dialog", name="Start a run")
        page.get_by_role("banner").get_by_role("button", name="Start a run").click()
        dialog.get_by_role("button", name="Manifest, for experts").click()
        dialog.get_by_label("or its text").fill(empty.model_dump_json())
        dialog.get_by_role("button", name="Start", exact=True).click()
        expect(dialog.get_by_role("alert")).to_contain_text("2 clients loses 100% of the indices")
        dialog.get_by_label("or its text").fill(lossy.model_dump_json())
        dialog.get_by_role("button", name="Start", exact=True).click()
        expect(dialog).to_be_hidden()

        warning = "! Warning: sec-union with q = 1, rho = 0.5 and 3 clients loses 43% of the indices"
        expect(page.get_by_role("note").get_by_text("Warning")).to_contain_text(warning)
        expect_completed(page)
        assert ["422" in each for each in watch.complaints] == [True], "the browser logs the refusal"


def test_a_run_that_does_not_learn_is_shown_as_stalled(stage: Stage) -> None:
    slow = draw_up(stage, rounds=9, local_steps=5, learning_rate=1e-6, patience=2)
    run = stage.federation.submit(slow)
    stage.federation.wait_for(run, lambda view: view.state == "completed")
    view = stage.federation.read(f"runs/{run}")
    assert view["rounds_released"] < 9

    with stage.page(f"/#/runs/{run}") as (page, watch):
        expect(page.get_by_role("note").get_by_text("Stalled")).to_have_text(f"! Stalled: {view['stalled']}.")
        page.get_by_role("region", name="Events").get_by_role("combobox").first.select_option("problems")
        expect(page.get_by_role("region", name="Events").get_by_text("the run is stalled")).to_be_visible()
        assert axe(page) == []
        watch.check()


def test_the_page_says_that_the_coordinator_is_away_and_goes_on_when_it_is_back(stage: Stage) -> None:
    federation = stage.federation
    manifest = draw_up(stage, rounds=4)
    run = manifest.run_id
    with prepared(stage, run):
        federation.submit(manifest)
    with stage.page(f"/#/runs/{run}") as (page, watch):
        with held(stage, run):
            with dead(stage, federation.coordinator_name):
                expect(page.get_by_text("The connection is lost.")).to_be_visible()
                expect(page.get_by_text(re.compile("^Reconnecting in"))).to_be_visible()
                assert axe(page) == []
            expect(page.get_by_text("Live", exact=True)).to_be_visible()
            expect(page.get_by_text("The connection is lost.")).to_be_hidden()
        expect_completed(page)
        check_numbers(stage, page, run)
        assert watch.network_failures, "nothing was lost, so nothing was shown"
        watch.check(away=True)


def test_a_cancelled_run_has_a_round_that_was_broken_off_and_nobody_who_collects(stage: Stage) -> None:
    manifest = draw_up(stage, rounds=4)
    with stage.page() as (page, watch):
        with prepared(stage, manifest.run_id):
            paste(page, manifest)
        expect(figure(page, "Time")).to_have_text("paused")
        expect(page.locator(".figure-time .figure-note")).to_have_text(re.compile(r"^for \d s now$"))
        with held(stage, manifest.run_id) as late:
            page.get_by_role("group", name="Steer this run").get_by_role("button", name="Cancel").click()
            page.get_by_role("dialog").get_by_role("button", name="Cancel the run").click()
            expect(page.locator("#run-sub").get_by_text("cancelled", exact=True)).to_be_visible()
        page.get_by_role("heading", name="State machine").click()
        expect(page.locator("#machine-moves")).to_have_text("Round 1 was broken off while collecting, for good.")
        party = page.get_by_role("region", name="Parties").get_by_role("img", name=re.compile(f"^{late}, client"))
        expect(party).to_have_accessible_name(re.compile("had not delivered union"))
        name_run(page, "Pilot, three hospitals")
        watch.check()
    assert stage.federation.read_run(manifest.run_id).name == "Pilot, three hospitals"


def name_run(page: Page, name: str) -> None:
    """Give the run a name, which the title and the list then have."""
    page.get_by_role("group", name="Steer this run").get_by_role("button", name="Name").click()
    dialog = page.get_by_role("dialog", name="Name this run")
    dialog.get_by_label("Name", exact=True).fill(name)
    dialog.get_by_label("Note").fill("Its second round was slow.")
    assert axe(page) == []
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    expect(page.get_by_role("article").get_by_text("Its second round was slow.")).to_be_visible()
    expect(page.get_by_role("navigation", name=re.compile("^Runs")).get_by_text(name)).to_be_visible()


# For everybody ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colours", COLOURS)
def test_nothing_is_in_anybodys_way_on_a_laptop_or_a_phone(stage: Stage, colours: ColourScheme) -> None:
    run = stage.federation.submit(draw_up(stage, rounds=2, local_steps=5))
    stage.federation.wait_for(run, lambda view: view.state == "completed")
    found = {name: look for (key, name), look in stage.empty.items() if key == colours}
    with stage.page(f"/#/runs/{run}", colours=colours) as (page, watch):
        expect(figure(page, "Round")).to_have_text("2 of 2")
        found["finished"] = look_at(page)
        for key, name in (("n", "Start a run"), ("?", "Keyboard")):
            # At once after the dialog before it is closed, whose field may have the focus for another frame.
            page.keyboard.press(key)
            dialog = page.get_by_role("dialog", name=name)
            expect(dialog).to_be_visible()
            found[name] = look_at(page)
            page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        page.set_viewport_size(PHONE)
        found["finished phone"] = Look([], overflow(page))
        table = page.get_by_role("region", name="Traffic by party, as a table")
        assert table.evaluate("element => element.scrollWidth <= element.clientWidth"), "a column is cut off"
        page.get_by_role("article").get_by_role("link", name="All runs").click()
        expect(page.get_by_role("navigation", name=re.compile("^Runs"))).to_be_visible()
        found["list phone"] = Look([], overflow(page))
        watch.check()

    assert {name: look for name, look in found.items() if look != Look([], 0)} == {}
    assert len(found) == 8


def test_the_interface_is_described_and_tried_on_a_page_of_its_own(stage: Stage) -> None:
    with watched_page(stage.browser, stage.federation.url) as (page, watch):
        page.goto("/docs")
        page.get_by_role("button", name="Authorize").click()
        dialog = page.locator(".modal-ux")
        dialog.get_by_role("textbox").fill(stage.federation.change_token)
        dialog.get_by_role("button", name="Apply credentials").click()
        dialog.get_by_role("button", name="Close").last.click()
        page.locator("[id$=-read_about]").get_by_role("button").first.click()
        page.get_by_role("button", name="Try it out").click()
        page.get_by_role("button", name="Execute").click()
        expect(page.locator(".live-responses-table").get_by_text('"may_change": true')).to_be_visible()
        watch.check()


def test_the_checkers_see_what_is_wrong(stage: Stage) -> None:
    with watched_page(stage.browser, stage.federation.url) as (page, watch):
        page.set_content(
            '<!doctype html><img src="http://127.0.0.2:1/x.png"><div style="width: 5000px">wide</div>'
            "<script>nowhere()</script>"
        )

        assert any(line.startswith("image-alt") for line in axe(page))
        assert overflow(page) > 3000
        assert watch.strangers == ["http://127.0.0.2:1/x.png"]
        with pytest.raises(AssertionError):
            watch.check()
        watch.strangers.clear()
        with pytest.raises(AssertionError):
            watch.check(away=True)
