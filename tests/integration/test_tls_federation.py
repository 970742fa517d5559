"""A whole federation as an operator sets it up: definitions from the roster, a login for each party, TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from hubbub.messages.manifest import Manifest
from hubbub.trust.audit import read_log
from hubbub.trust.comparison import compare, find_common
from hubbub.trust.roster import Roster
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.planning import draw_up_manifest
from support.certificates import Authority
from support.guarded_broker import GuardedBroker
from support.one_process import run_in_one_process
from support.private_node import NodeTls, PrivateNode, server_scripts
from support.processes import ProcessFederation

pytestmark = pytest.mark.broker

DEMO_SEED = 7
ROUNDS = 3


def draw_up(roster: Roster) -> Manifest:
    return draw_up_manifest(
        SyntheticTask(),
        roster=roster,
        strategy="sec-union",
        rho=0.1,
        local_steps=5,
        rounds=ROUNDS,
        seed=DEMO_SEED,
    )


def test_eight_parties_with_logins_of_their_own_train_over_tls_what_they_train_in_memory(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if server_scripts() is None:
        # Fails with what to do if there is no broker at all; may install one.
        request.getfixturevalue("amqp_url")
    if server_scripts() is None:
        pytest.skip("users and certificates take a broker of our own, and no rabbitmq-server is installed")
    authority = Authority(tmp_path / "authority")
    with PrivateNode(NodeTls(authority.ca_file, authority.certify_server("localhost"))) as node:
        broker = GuardedBroker(node, authority, tmp_path)
        with ProcessFederation(broker, tmp_path, trainers=5, demo_seed=DEMO_SEED) as federation:
            manifest = draw_up(federation.roster)

            digests = federation.finish(federation.submit(manifest))

            assert broker.list_connections("user", "ssl") == {(name, "true") for name in federation.roles}

    assert digests == run_in_one_process(manifest, federation.parties, tmp_path / "alone", demo_seed=DEMO_SEED)
    assert len(set(digests.values())) == 1
    assert manifest.initial_model_sha256 not in digests.values()
    logs = [read_log(service.folder / "audit.jsonl") for service in federation.services.values()]
    assert compare(logs) == ()
    assert find_common(logs).phases == 3 * ROUNDS
