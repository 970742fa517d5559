"""`hubbub doctor`: a party that is well, and each way in which it can be ill."""

import fcntl
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hubbub.ids import PartyId
from hubbub.transport.definitions import BrokerUser, make_definitions
from hubbub_cli import doctor_checks
from hubbub_cli.doctor_target import CheckStatus, Findings
from support.command_line import Hubbub
from support.doctor_scene import ADA, ALAN, ANNA, BERT, CORA, ROLES, client_options, find, verdicts
from support.live_coordinator import LiveCoordinator
from support.party_files import PartyFiles, write_party_files, write_policy
from support.private_node import PrivateNode
from support.proxies import PASSWORD, TinyProxy

# On this machine -------------------------------------------------------------------------------------------


def test_a_party_that_is_well(files: PartyFiles, hubbub: Hubbub) -> None:
    write_policy_again(files, demo_seed=False)

    ended = hubbub("doctor", *client_options(files), "--json")

    assert ended.code == 0
    assert ended.json["ok"] is True
    well = {"versions", "torch", "identity", "roster", "policy", "folder", "data"}
    assert {check for check, verdict in verdicts(ended).items() if verdict == "ok"} == well
    assert files.parties.roster.digest[:4] in find(ended, "roster", "ok")["what"]


def write_policy_again(files: PartyFiles, **limits: object) -> None:
    write_policy(files.policy(ANNA), **{"roster_sha256": files.parties.roster.digest, **limits})


def test_without_anything_given_nothing_is_claimed(hubbub: Hubbub) -> None:
    ended = hubbub("doctor")

    assert ended.code == 0
    assert "nothing is wrong with what was looked at" in ended.out
    assert "not set: --identity" in ended.out


def damage_identity(files: PartyFiles) -> None:
    text = files.identity(ANNA).read_text("utf-8")
    files.identity(ANNA).write_text(text.replace('"private_key"', '"privat_key"'), encoding="utf-8")


def change_roster(files: PartyFiles) -> None:
    text = files.roster.read_text("utf-8")
    files.roster.write_text(text.replace('"organisation":"bert"', '"organisation":"anna"'), encoding="utf-8")


def take_another_roster(files: PartyFiles) -> None:
    (files.folder / "others").mkdir()
    files.roster.write_bytes(write_party_files(files.folder / "others", ROLES).roster.read_bytes())


@pytest.mark.parametrize(
    ("spoil", "options", "check", "said"),
    [
        (lambda files: files.identity(ANNA).chmod(0o644), (), "identity", "chmod 600 {identity}"),
        (damage_identity, ("--role", "client"), "identity", "is not an identity file"),
        (None, ("--role", "aggregator"), "identity", "this is client anna of anna, not aggregator"),
        (change_roster, (), "roster", "does not prove that it holds its key"),
        (take_another_roster, (), "roster", "anna is not in it with the key of"),
        (take_another_roster, (), "policy", "it pins the roster"),
        (lambda files: write_policy_again(files, min_client=3), (), "policy", "min_client"),
        (None, ("--folder", "{roster}/deeper"), "folder", "--folder (HUBBUB_TRAINER_FOLDER)"),
    ],
)
def test_a_problem_is_named_with_its_remedy_and_without_secrets(
    files: PartyFiles,
    hubbub: Hubbub,
    spoil: Callable[[PartyFiles], None] | None,
    options: tuple[str, ...],
    check: str,
    said: str,
) -> None:
    facts = {"identity": files.identity(ANNA), "roster": files.roster}
    if spoil is not None:
        spoil(files)

    ended = hubbub("doctor", *client_options(files), *(each.format(**facts) for each in options), "--json")

    found, identity = find(ended, check), files.parties.identities[ANNA]
    assert ended.code == 1
    assert said.format(**facts) in f"{found['what']} {found['mend']}"
    for secret in (identity.key.to_bytes().hex(), identity.broker_password):
        assert secret not in ended.out


def test_a_pin_of_another_roster(files: PartyFiles, hubbub: Hubbub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBBUB_COORDINATOR_ROSTER_SHA256", "0" * 64)

    ended = hubbub("doctor", "--identity", files.identity(CORA), "--roster", files.roster, "--json")

    assert f"but {'0' * 64} is pinned" in find(ended, "roster")["what"]


def test_the_policy_of_an_aggregator(files: PartyFiles, hubbub: Hubbub) -> None:
    options = ("--identity", files.identity(ADA), "--roster", files.roster, "--policy", files.policy(ADA))

    well = hubbub("doctor", *options, "--json")
    write_policy(files.policy(ADA), roster_sha256=files.parties.roster.digest)
    slip = hubbub("doctor", *options, "--json")

    assert find(well, "policy", "ok")["what"] == "0 approved runs, at least 2 organisations a sum"
    assert "there is no 'demo_seed' in the aggregator's policy" in find(slip, "policy")["what"]


def test_a_folder_in_use_and_a_disk_that_is_almost_full_are_warnings(
    files: PartyFiles, hubbub: Hubbub, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, usage = files.folder / "anna", shutil.disk_usage(files.folder)
    folder.mkdir()
    with (folder / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        in_use = hubbub("doctor", *client_options(files), "--json")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=5 * 2**20))
    full = hubbub("doctor", *client_options(files), "--json")

    assert (in_use.code, full.code) == (0, 0)
    assert find(in_use, "folder", "warning")["what"] == f"a process is running in {folder}"
    assert "only 5.00 MB are free" in find(full, "folder", "warning")["what"]


# The coordinator -------------------------------------------------------------------------------------------


def test_a_coordinator_that_is_well(live: LiveCoordinator, hubbub: Hubbub) -> None:
    ended = hubbub("doctor", *live.options("read"), "--json")
    without_token = hubbub("doctor", "--url", live.url, "--json")

    assert (ended.code, without_token.code) == (0, 0)
    found = verdicts(ended)
    assert (found["coordinator"], found["clock"]) == ("ok", "ok")
    assert "takes this token, to read" in ended.out
    assert live.url in find(without_token, "coordinator", "ok")["what"]


def test_the_coordinator_that_other_commands_ask_is_asked_if_none_is_named(
    live: LiveCoordinator, hubbub: Hubbub, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = hubbub("doctor", "--json")
    monkeypatch.setattr(doctor_checks, "DEFAULT_URL", live.url)
    there = hubbub("doctor", "--json")

    assert (nobody.code, there.code) == (0, 0)
    assert "none at http://127.0.0.1:1" in find(nobody, "coordinator", "skipped")["what"]
    assert live.url in find(there, "coordinator", "ok")["what"]


def test_a_coordinator_that_is_away_or_refuses(live: LiveCoordinator, hubbub: Hubbub, files: PartyFiles) -> None:
    away = hubbub("doctor", "--url", "http://127.0.0.1:1", "--json")
    refused = hubbub("doctor", "--url", live.url, "--token-file", files.token("read"), "--json")

    assert "nobody answers" in find(away, "coordinator")["what"]
    assert "no token of this coordinator" in find(refused, "coordinator")["what"]
    assert files.tokens.read not in refused.out


@pytest.mark.parametrize(
    ("ahead_s", "verdict", "text"),
    [
        (4.9, CheckStatus.OK, "within 5 s"),
        (61.0, CheckStatus.WARNING, "61 s behind"),
        (-61.0, CheckStatus.WARNING, "61 s ahead of"),
    ],
)
def test_a_clock_that_is_off(ahead_s: float, verdict: CheckStatus, text: str) -> None:
    found = Findings()

    doctor_checks._compare_clocks(ahead_s, found)

    assert found.all[0].verdict is verdict
    assert text in found.all[0].what


# The broker ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Site:
    """A broker that was told all it knows by the roster."""

    node: PrivateNode
    files: PartyFiles

    def options(self, party: PartyId) -> tuple[str | Path, ...]:
        return (
            *("--identity", self.files.identity(party), "--roster", self.files.roster),
            *("--amqp-url", f"amqp://127.0.0.1:{self.node.port}/"),
        )

    def grant(self, party: PartyId, configure: str, write: str, read: str) -> None:
        self.node.ctl("set_permissions", "-p", "/", party, configure, write, read)


@pytest.fixture(scope="module")
def site(private_node: PrivateNode, tmp_path_factory: pytest.TempPathFactory) -> Site:
    files = write_party_files(tmp_path_factory.mktemp("site"), ROLES)
    users = [BrokerUser(each.name, each.role, each.broker_password_hash) for each in files.parties.roster.parties]
    definitions = files.folder / "definitions.json"
    definitions.write_text(json.dumps(make_definitions(users)), encoding="utf-8")
    private_node.ctl("import_definitions", str(definitions))
    return Site(private_node, files)


@pytest.mark.broker
@pytest.mark.parametrize(
    ("party", "queues"),
    [
        (ANNA, "hubbub.inbox.anna, hubbub.peers.anna"),
        (ADA, "hubbub.orders.ada, hubbub.inbox.ada"),
        (CORA, "hubbub.inbox.cora"),
    ],
)
def test_every_role_has_the_rights_that_it_needs_and_no_others(
    site: Site, hubbub: Hubbub, party: PartyId, queues: str
) -> None:
    ended = hubbub("doctor", *site.options(party), "--json")

    found = verdicts(ended)
    assert (found["broker"], found["rights"]) == ("ok", "ok"), ended.out
    assert f"lets {party} in, over no TLS; its queues are there: {queues}" in find(ended, "broker", "ok")["what"]


@pytest.mark.broker
def test_rights_beyond_those_generated_and_rights_that_are_lacking_are_found(site: Site, hubbub: Hubbub) -> None:
    site.grant(BERT, "^$", ".*", "^hubbub\\.(inbox|peers|dead)\\.bert$")
    site.grant(ALAN, "^$", "^hubbub\\.(results|rejected\\.alan)$", "^hubbub\\.dead\\.alan$")

    excess, lacking = (hubbub("doctor", *site.options(party), "--json") for party in (BERT, ALAN))

    assert (excess.code, lacking.code) == (1, 1)
    fault = find(excess, "rights")
    assert "bert may also publish to the default exchange; publish to exchange amq.direct" in fault["what"]
    assert "hubbub roster broker-config" in fault["mend"]
    assert find(lacking, "rights")["what"] == (
        "alan may not publish to exchange hubbub.reports; publish to exchange hubbub.partials; "
        "read queue hubbub.orders.alan; read queue hubbub.inbox.alan"
    )


@pytest.mark.broker
def test_a_login_that_the_broker_does_not_know(site: Site, hubbub: Hubbub, files: PartyFiles) -> None:
    ended = hubbub("doctor", *site.options(ANNA), "--identity", files.identity(ANNA), "--json")

    assert "refuses user 'anna'" in find(ended, "broker")["what"]
    assert files.parties.identities[ANNA].broker_password not in ended.out


@pytest.mark.broker
def test_a_proxy_that_refuses_is_told_from_a_broker_that_refuses(
    site: Site, hubbub: Hubbub, files: PartyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = (*site.options(ANNA), "--identity", files.identity(ANNA))

    with TinyProxy(site.node.port) as proxy:
        monkeypatch.setenv("HUBBUB_TRAINER_PROXY", proxy.url)
        well, by_broker = (hubbub("doctor", *options, "--json") for options in (site.options(ANNA), stranger))
        monkeypatch.setenv("HUBBUB_TRAINER_PROXY", proxy.url.replace(PASSWORD, "sesame"))
        by_proxy = hubbub("doctor", *site.options(ANNA), "--json")

    assert f"through the proxy at {proxy.where}" in find(well, "broker", "ok")["what"]
    assert verdicts(well)["rights"] == "ok"
    assert "refuses user 'anna'" in find(by_broker, "broker")["what"]
    assert f"the proxy at {proxy.where} does not let us in" in find(by_proxy, "proxy")["what"]
    assert "HUBBUB_TRAINER_PROXY" in find(by_proxy, "proxy")["mend"]
    assert verdicts(by_proxy)["broker"] == "skipped"
    assert not [word for word in (PASSWORD, "sesame") if word in well.out + by_broker.out + by_proxy.out]


@pytest.mark.broker
def test_what_was_found_is_a_table_that_fits(site: Site, hubbub: Hubbub) -> None:
    ended = hubbub("doctor", *site.options(CORA), "--url", "http://127.0.0.1:1", columns=80)

    assert ended.code == 1
    assert max(len(line) for line in ended.out.splitlines()) <= 80
    assert "1 problem, 0 warnings" in ended.out
    assert "-> start it, or correct --url (HUBBUB_URL)" in ended.joined
