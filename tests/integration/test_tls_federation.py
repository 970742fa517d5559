"""A whole federation as an operator sets it up: definitions from the roster, a login for each party, TLS."""

from pathlib import Path

import pytest

from hubbub.trust.audit import read_log
from hubbub.trust.comparison import compare, find_common
from support.certificates import Authority
from support.guarded_broker import GuardedBroker
from support.one_process import run_in_one_process
from support.private_node import NodeTls, PrivateNode
from support.processes import ProcessFederation

pytestmark = pytest.mark.broker

DEMO_SEED = 7
ROUNDS = 3


def test_eight_parties_with_logins_of_their_own_train_over_tls_what_they_train_in_memory(
    rabbitmq_server: None, tmp_path: Path
) -> None:
    del rabbitmq_server
    authority = Authority(tmp_path / "authority")
    with PrivateNode(NodeTls(authority.ca_file, authority.certify_server("localhost"))) as node:
        broker = GuardedBroker(node, authority, tmp_path)
        with ProcessFederation(broker, tmp_path, trainers=5, demo_seed=DEMO_SEED) as federation:
            manifest = federation.draw_up(rounds=ROUNDS)

            digests = federation.finish(federation.submit(manifest))

            assert broker.list_connections("user", "ssl") == {(name, "true") for name in federation.roles}

    assert digests == run_in_one_process(manifest, federation.parties, tmp_path / "alone", demo_seed=DEMO_SEED)
    assert len(set(digests.values())) == 1
    assert manifest.initial_model_sha256 not in digests.values()
    logs = [read_log(service.folder / "audit.jsonl") for service in federation.services.values()]
    assert compare(logs) == ()
    assert find_common(logs).phases == 3 * ROUNDS
