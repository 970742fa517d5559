"""`hubbub policy` as a data owner meets it: a file with comments, a verdict on a manifest, an approval."""

import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from hubbub.ids import Role
from hubbub.messages.manifest import Manifest, Predecessor
from hubbub.trust.identity import Identity, new_identity
from hubbub.trust.roster import build_roster
from hubbub.trust.succession import endorse, gather
from hubbub_aggregator.policy import AggregatorPolicy
from hubbub_trainer.policy import Policy
from support.builders import aggregator_names, client_names, make_cohort, make_manifest
from support.command_line import Ended, Hubbub

EARLIER = "e" * 64


def make_identities() -> dict[str, Identity]:
    parties = [
        *((member.name, Role.CLIENT, member.organisation) for member in make_cohort(client_names(3))),
        *((name, Role.AGGREGATOR, f"operator-{number}") for number, name in enumerate(aggregator_names(2), 1)),
        ("coordinator", Role.COORDINATOR, "hub"),
    ]
    return {party[0]: new_identity(*party) for party in parties}


IDENTITIES = make_identities()
ROSTER = build_roster([identity.public() for identity in IDENTITIES.values()])


@dataclass(frozen=True)
class Desk:
    """The files on a data owner's desk, and the command."""

    folder: Path
    hubbub: Hubbub

    @property
    def roster(self) -> Path:
        return self.folder / "roster.json"

    @property
    def policy(self) -> Path:
        return self.folder / "policy.toml"

    def put_manifest(self, **overrides: object) -> tuple[Manifest, Path]:
        manifest = make_manifest(clients=3, servers=2, **{"roster_sha256": ROSTER.digest, **overrides})
        path = self.folder / "run.json"
        path.write_text(manifest.model_dump_json(), encoding="utf-8")
        return manifest, path

    def put_policy(self, text: str = "") -> None:
        self.policy.write_text(f'roster_sha256 = "{ROSTER.digest}"\n{text}', encoding="utf-8")

    def init(self, *options: str) -> Ended:
        return self.hubbub("policy", "init", "--roster", self.roster, "--out", self.policy, *options)

    def check(self, manifest: Path, *options: str) -> Ended:
        names = ("--policy", self.policy, "--roster", self.roster)
        return self.hubbub("policy", "check", manifest, *names, *options)

    def approve(self, manifest: Path, *options: str, typed: str = "") -> Ended:
        names = ("--policy", self.policy, "--roster", self.roster)
        return self.hubbub("policy", "approve", manifest, *names, *options, typed=typed)


@pytest.fixture
def desk(tmp_path: Path, hubbub: Hubbub) -> Desk:
    (tmp_path / "roster.json").write_text(ROSTER.model_dump_json(), encoding="utf-8")
    return Desk(tmp_path, hubbub)


def test_init_writes_the_defaults_each_under_a_comment_and_pins_the_roster(desk: Desk) -> None:
    result = desk.init()

    assert result.code == 0
    assert ROSTER.digest in result.joined.replace(" ", "")
    assert Policy.read(desk.policy) == Policy(roster_sha256=ROSTER.digest)
    paragraphs = [each.splitlines() for each in desk.policy.read_text("utf-8").strip().split("\n\n")[1:]]
    assert [lines[-1].split(" = ")[0] for lines in paragraphs] == list(Policy.model_fields)
    assert all(lines[:-1] and all(line.startswith("# ") for line in lines[:-1]) for lines in paragraphs)


def test_an_aggregators_operator_writes_checks_and_approves_in_the_same_way(desk: Desk) -> None:
    manifest, path = desk.put_manifest(strategy="sum", rounds=2)
    whose = ("--role", "aggregator")

    desk.init(*whose)
    assert AggregatorPolicy.read(desk.policy) == AggregatorPolicy(roster_sha256=ROSTER.digest)
    allowed = desk.check(path, *whose)
    desk.policy.write_text(desk.policy.read_text("utf-8").replace('approve_tasks = ["*"]', "approve_tasks = []"))
    unapproved = desk.check(path, *whose)
    agreed = desk.approve(path, "--yes", *whose)

    assert "The aggregator joins this run." in allowed.joined
    assert f"--roster {desk.roster} --role aggregator" in unapproved.joined
    assert agreed.code == desk.check(path, *whose).code == 0
    assert AggregatorPolicy.read(desk.policy).approved == (manifest.run_id,)


def test_init_never_overwrites_and_the_policy_of_another_role_is_said_to_be_one(desk: Desk) -> None:
    _, path = desk.put_manifest()
    desk.init("--role", "aggregator")
    before = desk.policy.read_bytes()

    desk.init().check_refused("never overwritten")
    desk.check(path).check_refused("no 'max_parameters' in the trainer's policy")
    assert desk.policy.read_bytes() == before


def test_check_shows_what_would_be_joined(desk: Desk) -> None:
    desk.put_policy('approve_tasks = ["synthetic"]\n')
    manifest, path = desk.put_manifest(learning_rate=0.25)

    result = desk.check(path)

    assert result.code == 0
    for fact in (
        manifest.run_id,
        "task 'synthetic'",
        "rounds 2, each of 2 local steps",
        "learning rate 0.25 instead of the task's own",
        "strategy 'no-union' (no server learns anything of one client)",
        "cohort client-1 (org-1), client-2 (org-2), client-3 (org-3)",
        "min_clients 3 of 3 organisations",
        "aggregators aggregator-1 (operator-1), aggregator-2 (operator-2)",
        "coordinator coordinator (hub)",
        "The trainer joins this run.",
    ):
        assert fact in result.joined


def endorsed(*names: str, **overrides: object) -> dict[str, object]:
    """The fields of a manifest that goes on from a run of the same clients."""
    first = make_manifest(clients=3, servers=2, **{"roster_sha256": ROSTER.digest, **overrides})
    commitment, predecessor = gather([endorse(IDENTITIES[name], first, "c" * 64) for name in names])
    return {"initial_model_sha256": commitment, "predecessor": predecessor}


def test_check_tells_which_run_another_goes_on_from_and_who_endorses_it(desk: Desk) -> None:
    desk.put_policy('approve_tasks = ["synthetic"]\n')
    before = endorsed("client-1", "client-2", "client-3")
    _, path = desk.put_manifest(**before)

    result = desk.check(path)

    assert result.code == 0
    assert isinstance(before["predecessor"], Predecessor)
    assert f"goes on from {before['predecessor'].run}" in result.joined
    assert "endorsed by client-1 (org-1), client-2 (org-2), client-3 (org-3)" in result.joined


def test_check_and_approve_refuse_a_model_with_too_few_endorsements_or_with_others(desk: Desk) -> None:
    desk.put_policy('approve_tasks = ["synthetic"]\n')
    for predecessor, objection in (
        (
            {**endorsed("client-1", "client-2", "client-3"), "initial_model_sha256": "d" * 64},
            "the endorsement of client-1 does not hold",
        ),
        (endorsed("client-1", "client-2", min_clients=2), "had a min_clients of 2"),
    ):
        _, path = desk.put_manifest(**predecessor)
        for result in (desk.check(path), desk.approve(path, "--yes")):
            assert result.code == 1
            assert objection in result.joined


def test_check_names_every_objection(desk: Desk) -> None:
    desk.put_policy('approve_tasks = ["*"]\nmax_rounds = 1\n')
    _, path = desk.put_manifest(strategy="fedavg", coordinator="stranger")

    result = desk.check(path, "--runs", "20")

    assert (result.code, result.err) == (1, "")
    for fact in (
        "stranger (not in the roster)",
        "- stranger is not in the roster",
        "- the manifest's strategy is 'fedavg' (the first aggregator sees every client's update)",
        "- the manifest has rounds = 2",
        "- this trainer has joined 20 runs",
    ):
        assert fact in result.joined
    assert "approve" not in result.joined
    assert "joins this run" not in result.joined


def test_check_says_how_to_approve_what_lacks_only_approval(desk: Desk) -> None:
    desk.put_policy()
    _, path = desk.put_manifest()

    result = desk.check(path)

    assert (result.code, result.err) == (1, "")
    assert "against it" not in result.joined
    command = f"hubbub policy approve {path} --policy {desk.policy} --roster {desk.roster}"
    assert f"Only approval is missing: {command}" in result.joined


def test_what_a_stranger_wrote_cannot_repaint_the_screen(desk: Desk) -> None:
    desk.put_policy()
    _, path = desk.put_manifest(task="\x1b[2J[red]\u202elenet", strategy="\x1b[1Ax")

    for result in (desk.check(path), desk.approve(path, "--yes")):
        assert (result.out + result.err).replace("\n", "").isprintable()
        assert r"'\x1b[2J[red]\u202elenet'" in result.joined


def test_approval_is_asked_for_and_then_joined(desk: Desk) -> None:
    desk.put_policy()
    manifest, path = desk.put_manifest()
    before = desk.policy.read_bytes()

    assert desk.approve(path, typed="n\n").code == 1
    assert desk.policy.read_bytes() == before

    agreed = desk.approve(path, typed="y\n")
    assert agreed.code == 0
    assert agreed.joined.index(manifest.run_id) < agreed.joined.index("Approve this run?")
    assert Policy.read(desk.policy).approved == (manifest.run_id,)
    assert desk.check(path).code == 0


def test_approving_twice_or_against_a_limit_changes_nothing(desk: Desk) -> None:
    desk.put_policy()
    _, path = desk.put_manifest()
    desk.approve(path, "--yes")
    before = desk.policy.read_bytes(), desk.policy.stat().st_ino

    again = desk.approve(path)
    _, path = desk.put_manifest(strategy="fedavg")
    against = desk.approve(path, "--yes")

    assert (again.code, against.code) == (0, 1)
    assert "approved already" in again.joined
    assert "Approval does not lift these limits" in against.joined
    assert (desk.policy.read_bytes(), desk.policy.stat().st_ino) == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("approved = []  # none\n", 'approved = [\n    "RUN",\n]  # none\n'),
        (f'approved = ["{EARLIER}"]\n', f'approved = ["{EARLIER}",\n    "RUN",\n]\n'),
        (
            f'approved = [\n    "{EARLIER}",  # March\n]\n',
            f'approved = [\n    "{EARLIER}",  # March\n    "RUN",\n]\n',
        ),
        (
            f'approved = [\n    "{EARLIER}"  # March\n    # the end\n]\n',
            f'approved = [\n    "{EARLIER}",  # March\n    # the end\n    "RUN",\n]\n',
        ),
        ("approved = [\n    # None yet.\n]\n", 'approved = [\n    # None yet.\n    "RUN",\n]\n'),
    ],
    ids=["empty", "one line", "many lines", "no last comma", "only a comment"],
)
def test_approval_keeps_comments_and_values(before: str, after: str, desk: Desk) -> None:
    text = "# Ours.\n\n{}\n# Agreed with the board.\nmax_runs   = 7 # not more\n"
    desk.put_policy(text.format(before))
    manifest, path = desk.put_manifest()

    assert desk.approve(path, "--yes").code == 0

    pinned = f'roster_sha256 = "{ROSTER.digest}"\n'
    assert desk.policy.read_text("utf-8") == pinned + text.format(after).replace("RUN", manifest.run_id)


@pytest.mark.parametrize("text", ["", "max_runs = 7\n# The end.\n", "max_runs = 7"])
def test_approval_where_none_was_before(text: str, desk: Desk) -> None:
    desk.put_policy(text)
    before = desk.policy.read_text("utf-8")
    manifest, path = desk.put_manifest()

    assert desk.approve(path, "--yes").code == 0

    after = desk.policy.read_text("utf-8")
    assert after.startswith(before)
    assert tomllib.loads(after) == {**tomllib.loads(before), "approved": [manifest.run_id]}


def test_an_edit_that_goes_wrong_is_not_written(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.put_policy("max_runs = 7\n")
    _, path = desk.put_manifest()
    before = desk.policy.read_bytes()
    monkeypatch.setattr("tomlkit.dumps", lambda document: document.as_string().replace("max_runs = 7", ""))

    ended = desk.approve(path, "--yes")

    assert (ended.code, "to its approved by hand" in ended.err) == (2, True)
    assert desk.policy.read_bytes() == before


def test_the_file_keeps_its_mode_and_its_link_and_leaves_nothing_beside_it(desk: Desk) -> None:
    desk.put_policy()
    kept = desk.policy.rename(desk.folder / "kept.toml")
    kept.chmod(0o640)
    desk.policy.symlink_to(kept)
    manifest, path = desk.put_manifest()
    files = sorted(desk.folder.iterdir())

    desk.approve(path, "--yes")

    assert desk.policy.is_symlink()
    assert Policy.read(kept).approved == (manifest.run_id,)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o640
    assert sorted(desk.folder.iterdir()) == files


def test_a_failed_write_leaves_the_old_policy(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.put_policy()
    _, path = desk.put_manifest()
    before, files = desk.policy.read_bytes(), sorted(desk.folder.iterdir())

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    ended = desk.approve(path, "--yes")

    assert (ended.code, "cannot be changed: No space left" in ended.err) == (2, True)
    assert desk.policy.read_bytes() == before
    assert sorted(desk.folder.iterdir()) == files


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "cannot be read: No such file"), ("{}", "run.json: this is not a manifest: ")],
)
def test_a_manifest_that_is_none_is_told_in_one_line(content: str | None, complaint: str, desk: Desk) -> None:
    desk.put_policy()
    path = desk.folder / "run.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")

    desk.check(path).check_refused(complaint)
