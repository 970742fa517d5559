"""`hubbub doctor`: a party that is well, and each way in which it can be ill."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hubbub.ids import PartyId
from hubbub.transport.definitions import BrokerUser, make_definitions
from hubbub_cli import doctor_checks
from hubbub_cli.doctor_target import CheckStatus, Findings
from support.command_line import Hubbub
from support.doctor_scene import ADA, ALAN, ANNA, BERT, CORA, ROLES, client_options, find, verdicts
from support.live_coordinator import LiveCoordinator, live_coordinator
from support.party_files import PartyFiles, write_party_files, write_policy
from support.private_node import PrivateNode

# On this machine -------------------------------------------------------------------------------------------


def test_a_party_that_is_well(files: PartyFiles, hubbub: Hubbub) -> None:
    write_policy_again(files, demo_seed=False)

    ended = hubbub("doctor", *client_options(files), "--json")

    assert ended.code == 0
    assert json.loads(ended.out)["ok"] is True
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


def test_an_identity_that_others_may_read(files: PartyFiles, hubbub: Hubbub) -> None:
    files.identity(ANNA).chmod(0o644)

    ended = hubbub("doctor", *client_options(files), "--json")

    assert ended.code == 1
    assert find(ended, "identity")["mend"] == f"chmod 600 {files.identity(ANNA)}"


def test_an_identity_that_is_damaged_shows_none_of_it(files: PartyFiles, hubbub: Hubbub) -> None:
    text = files.identity(ANNA).read_text("utf-8")
    files.identity(ANNA).write_text(text.replace('"private_key"', '"privat_key"'), encoding="utf-8")

    ended = hubbub("doctor", *client_options(files), "--role", "client", "--json")

    identity = files.parties.identities[ANNA]
    assert "is not an identity file" in find(ended, "identity")["what"]
    assert identity.key.to_bytes().hex() not in ended.out
    assert identity.broker_password not in ended.out


def test_the_identity_of_another_role(files: PartyFiles, hubbub: Hubbub) -> None:
    ended = hubbub("doctor", "--role", "aggregator", "--identity", files.identity(ANNA), "--json")

    assert ended.code == 1
    assert find(ended, "identity")["what"] == "this is client anna of anna, not aggregator"


def test_a_roster_that_somebody_changed(files: PartyFiles, hubbub: Hubbub) -> None:
    text = files.roster.read_text("utf-8")
    files.roster.write_text(text.replace('"organisation":"bert"', '"organisation":"anna"'), encoding="utf-8")

    ended = hubbub("doctor", *client_options(files), "--json")

    assert "does not prove that it holds its key" in find(ended, "roster")["what"]


def test_a_roster_without_this_party(files: PartyFiles, hubbub: Hubbub, tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    others = write_party_files(tmp_path / "others", ROLES)

    ended = hubbub("doctor", *client_options(files), "--roster", others.roster, "--json")

    assert "anna is not in it with the key of" in find(ended, "roster")["what"]
    assert "it pins the roster" in find(ended, "policy")["what"]


def test_a_pin_of_another_roster(files: PartyFiles, hubbub: Hubbub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBBUB_COORDINATOR_ROSTER_SHA256", "0" * 64)

    ended = hubbub("doctor", "--identity", files.identity(CORA), "--roster", files.roster, "--json")

    assert f"but {'0' * 64} is pinned" in find(ended, "roster")["what"]


def test_a_policy_with_a_slip(files: PartyFiles, hubbub: Hubbub) -> None:
    write_policy_again(files, min_client=3)

    ended = hubbub("doctor", *client_options(files), "--json")

    assert "min_client" in find(ended, "policy")["what"]


def test_the_policy_of_an_aggregator(files: PartyFiles, hubbub: Hubbub) -> None:
    options = (
        "--identity",
        files.identity(ADA),
        "--roster",
        files.roster,
        "--policy",
        files.policy(ADA),
        "--json",
    )

    well = hubbub("doctor", *options)
    write_policy(files.policy(ADA), roster_sha256=files.parties.roster.digest)
    slip = hubbub("doctor", *options)

    assert find(well, "policy", "ok")["what"] == "0 approved runs, at least 2 organisations a sum"
    assert "there is no 'demo_seed' in the aggregator's policy" in find(slip, "policy")["what"]


def test_a_folder_that_a_service_uses(files: PartyFiles, hubbub: Hubbub) -> None:
    folder = files.folder / "anna"
    folder.mkdir()
    with (folder / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        ended = hubbub("doctor", *client_options(files), "--json")

    assert ended.code == 0
    assert find(ended, "folder", "warning")["what"] == f"a process is running in {folder}"


def test_a_folder_that_is_a_file(files: PartyFiles, hubbub: Hubbub) -> None:
    ended = hubbub("doctor", "--identity", files.identity(ADA), "--folder", files.roster / "deeper", "--json")

    assert ended.code == 1
    assert "--folder (HUBBUB_AGGREGATOR_FOLDER)" in find(ended, "folder")["mend"]


def test_a_disk_that_is_almost_full(files: PartyFiles, hubbub: Hubbub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(files.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=5 * 2**20))

    ended = hubbub("doctor", *client_options(files), "--json")

    assert "only 5.00 MB are free" in find(ended, "folder", "warning")["what"]


# The coordinator -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCoordinator]:
    with live_coordinator(tmp_path_factory.mktemp("live")) as live:
        yield live


def test_a_coordinator_that_is_well(live: LiveCoordinator, hubbub: Hubbub) -> None:
    ended = hubbub("doctor", "--url", live.url, "--token-file", live.token_file("read"), "--json")

    assert ended.code == 0
    found = verdicts(ended)
    assert (found["coordinator"], found["clock"]) == ("ok", "ok")
    assert "takes this token, to read" in ended.out


def test_a_coordinator_is_asked_without_a_token_what_is_open(live: LiveCoordinator, hubbub: Hubbub) -> None:
    ended = hubbub("doctor", "--url", live.url, "--json")

    assert ended.code == 0
    assert live.url in find(ended, "coordinator", "ok")["what"]


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
    private_node.import_definitions(definitions)
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
def test_rights_beyond_those_generated_are_found(site: Site, hubbub: Hubbub) -> None:
    site.grant(BERT, "^$", ".*", "^hubbub\\.(inbox|peers|dead)\\.bert$")

    ended = hubbub("doctor", *site.options(BERT), "--json")

    fault = find(ended, "rights")
    assert ended.code == 1
    assert "bert may also publish to the default exchange; publish to exchange amq.direct" in fault["what"]
    assert "hubbub roster broker-config" in fault["mend"]


@pytest.mark.broker
def test_rights_that_are_lacking_are_found(site: Site, hubbub: Hubbub) -> None:
    site.grant(ALAN, "^$", "^hubbub\\.(results|rejected\\.alan)$", "^hubbub\\.dead\\.alan$")

    ended = hubbub("doctor", *site.options(ALAN), "--json")

    lacking = (
        "alan may not publish to exchange hubbub.reports; publish to exchange hubbub.partials; "
        "read queue hubbub.orders.alan; read queue hubbub.inbox.alan"
    )
    assert find(ended, "rights")["what"] == lacking


@pytest.mark.broker
def test_a_login_that_the_broker_does_not_know(site: Site, hubbub: Hubbub, files: PartyFiles) -> None:
    ended = hubbub("doctor", *site.options(ANNA), "--identity", files.identity(ANNA), "--json")

    assert "refuses user 'anna'" in find(ended, "broker")["what"]
    assert files.parties.identities[ANNA].broker_password not in ended.out


@pytest.mark.broker
def test_what_was_found_is_a_table_that_fits(site: Site, hubbub: Hubbub) -> None:
    ended = hubbub("doctor", *site.options(CORA), "--url", "http://127.0.0.1:1", columns=80)

    assert ended.code == 1
    assert max(len(line) for line in ended.out.splitlines()) <= 80
    assert "1 problem, 0 warnings" in ended.out
    assert "-> start it, or correct --url (HUBBUB_URL)" in ended.joined
