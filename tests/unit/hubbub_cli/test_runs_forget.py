"""`hubbub run forget`: a run is given up in a party's folder."""

from pathlib import Path

import numpy as np

from hubbub.ids import PartyId, RunId
from hubbub.machine.effects import Key
from hubbub.runtime.spool import ChunkRef, Spool
from hubbub.runtime.state_folder import Tombstones
from hubbub.store.state_file import Vault
from hubbub.trust.audit import AuditLog
from hubbub_trainer.fingerprint import Fingerprint
from hubbub_trainer.ledger import Ledger
from support.command_line import Hubbub

RUN, OTHER = RunId("12" * 32), RunId("34" * 32)
ME = PartyId("clinic-a")


def leave_open(folder: Path) -> None:
    """Write the folder of a trainer that ends in the middle of two runs."""
    audit, vault = AuditLog(folder / "audit.jsonl", ME), Vault(folder / "state.sqlite")
    ledger = Ledger(folder / "ledger.sqlite")
    for number, run in enumerate((RUN, OTHER)):
        audit.append("joined", run=run)
        Tombstones(folder / "tombstones").add(run)
        vault.put(run, "run key", b"a secret of " + run.encode())
        model = Fingerprint.of(np.arange(9, dtype=np.float32) + number, [9])
        ledger.claim(run, model, cohort=(ME,), predecessor=None, limit=1)
        ledger.count(run)
        Spool(folder / "spool").write(Key("round", run, 1), ChunkRef(PartyId("north"), "0" * 32, 0), b"a sum")
        (folder / "runs" / run).mkdir(parents=True)
        (folder / "runs" / run / "state-000001.safetensors").write_bytes(b"model and accumulator")
        (folder / "runs" / run / "rounds.jsonl").write_bytes(b"notes")
    audit.close()
    vault.close()
    ledger.close()


def list_files(folder: Path, run: RunId) -> set[str]:
    return {path.name for part in ("runs", "spool") for path in (folder / part / run).glob("*")}


def test_a_run_is_forgotten_and_what_must_be_kept_for_ever_stays(hubbub: Hubbub, tmp_path: Path) -> None:
    leave_open(tmp_path)
    before = list_files(tmp_path, OTHER)

    ended = hubbub("run", "forget", RUN[:6], "--folder", tmp_path)

    assert ended.code == 0
    assert f"run {RUN} is forgotten in {tmp_path}" in ended.out
    assert b"a secret of " + RUN.encode() not in (tmp_path / "state.sqlite").read_bytes()
    assert list_files(tmp_path, RUN) == {"rounds.jsonl"}
    assert list_files(tmp_path, OTHER) == before
    ledger, vault = Ledger(tmp_path / "ledger.sqlite"), Vault(tmp_path / "state.sqlite")
    assert {run.run for entry in ledger.list_entries() for run in entry.runs} == {RUN, OTHER}
    assert (vault.get(RUN, "run key"), vault.get(OTHER, "run key")) == (None, b"a secret of " + OTHER.encode())
    ledger.close()
    vault.close()
    assert Tombstones(tmp_path / "tombstones").find_open() == [OTHER]


def test_what_cannot_be_forgotten_is_said_in_one_line(hubbub: Hubbub, tmp_path: Path) -> None:
    leave_open(tmp_path)

    for run, folder, complaint in (
        ("5678", tmp_path, "no runs that were joined here begin with '5678'"),
        (RUN, tmp_path / "elsewhere", "is not the folder of an aggregator or a trainer"),
    ):
        hubbub("run", "forget", run, "--folder", folder).check_refused(complaint)
