"""A service that cannot start says why and what to do, in one line, and ends."""

from __future__ import annotations

import fcntl
import json
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hubbub.ids import PartyId, Role
from hubbub.runtime.process import EXIT_CONFIGURATION, EXIT_FAILED
from hubbub.trust.identity import Identity, new_identity, write_identity
from support.nursery import Child, Nursery
from support.party_files import PartyFiles, write_party_files, write_policy, write_private
from support.patience import HANG_S
from support.processes import MODULES, SharedBroker, environment_of, prefix_of
from support.twins import new_party

PASSWORD = "sesame"
ROLES = list(Role)
# Nothing in these tests gets as far as to use it.
NOWHERE = f"amqp://guest:{PASSWORD}@127.0.0.1:1/"


NURSERIES: list[Nursery] = []
"""The one of this module, while its tests run."""


@pytest.fixture(scope="module", autouse=True)
def nursery() -> Iterator[None]:
    with Nursery() as nursery:
        NURSERIES.append(nursery)
        yield
        NURSERIES.remove(nursery)


def start(role: Role, settings: dict[str, str], output: Path) -> Child:
    (nursery,) = NURSERIES
    return nursery.bear(["-m", MODULES[role]], environment_of(role, settings), output)


def wait_for_end(process: Child) -> int:
    """Its exit code; it does not outlive this."""
    try:
        return process.wait(timeout=HANG_S)
    finally:
        process.kill()


def find_complaint(output: str) -> str:
    """The one line with which it ended; all other lines are ordinary log lines."""
    assert "Traceback" not in output
    assert PASSWORD not in output
    *before, last = output.splitlines()
    assert {json.loads(line)["level"] for line in before} <= {"info"}, output
    if not last.startswith("{"):
        return last
    record = json.loads(last)
    assert record["level"] == "error"
    assert "traceback" not in record
    return str(record["message"])


def complain_all(settings: dict[Role, dict[str, str]], code: int = EXIT_CONFIGURATION) -> dict[Role, str]:
    """Start these services, all at once, and return with which words each of them ended."""
    with tempfile.TemporaryDirectory() as folder:
        files = {role: Path(folder) / role.value for role in settings}
        processes = {role: start(role, each, files[role]) for role, each in settings.items()}
        codes = {wait_for_end(process) for process in processes.values()}
        outputs = {role: file.read_text("utf-8") for role, file in files.items()}
    assert codes == {code}, outputs
    return {role: find_complaint(output) for role, output in outputs.items()}


def complain(role: Role, settings: dict[str, str], code: int = EXIT_CONFIGURATION) -> str:
    return complain_all({role: settings}, code)[role]


@dataclass(frozen=True, slots=True)
class Scene:
    """One party of each role, with all that it needs but a broker."""

    folder: Path
    files: PartyFiles
    names: dict[Role, PartyId]

    def settings(self, role: Role, url: str = NOWHERE) -> dict[str, str]:
        folder = self.folder / "folder" / role.value
        return {**self.files.settings_for(self.names[role]), "amqp_url": url, "folder": str(folder)}

    def settings_of_all(self, url: str = NOWHERE) -> dict[Role, dict[str, str]]:
        return {role: self.settings(role, url) for role in ROLES}

    def identity(self, role: Role) -> Path:
        return self.files.identity(self.names[role])

    def policy(self, role: Role) -> Path:
        return self.files.policy(self.names[role])

    def secrets(self) -> list[str]:
        """What no line may show."""
        identities = self.files.parties.identities.values()
        passwords = [identity.broker_password for identity in identities]
        keys = [identity.key.to_bytes().hex() for identity in identities]
        return [*passwords, *keys, self.files.tokens.read, self.files.tokens.change]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    names = {role: new_party(role.value) for role in ROLES}
    files = write_party_files(tmp_path / "files", {name: role for role, name in names.items()})
    return Scene(tmp_path, files, names)


# Settings -------------------------------------------------------------------------------------------------


def test_every_missing_setting_is_named() -> None:
    own = {
        Role.COORDINATOR: ("ROSTER_SHA256", "READ_TOKEN_FILE", "CHANGE_TOKEN_FILE"),
        Role.AGGREGATOR: ("POLICY",),
        Role.CLIENT: ("POLICY",),
    }

    for role, complaint in complain_all({role: {} for role in ROLES}).items():
        for setting in ("IDENTITY", "ROSTER", "AMQP_URL", "FOLDER", *own[role]):
            assert f"{prefix_of(role)}{setting}: Field required" in complaint


def test_misspelt_setting_is_named_beside_those_that_there_are(scene: Scene) -> None:
    misspelt = {role: {**scene.settings(role), "amqp_urll": NOWHERE} for role in ROLES}

    for role, complaint in complain_all(misspelt).items():
        assert f"{prefix_of(role)}AMQP_URLL: no such setting" in complaint
        assert f"{prefix_of(role)}AMQP_URL," in complaint


@pytest.mark.parametrize("url", [f"http://guest:{PASSWORD}@localhost/", f"{PASSWORD}", f"amqp://:{PASSWORD}@:x/"])
def test_url_that_is_none_is_refused_without_repeating_it(scene: Scene, url: str) -> None:
    complaint = complain(Role.AGGREGATOR, scene.settings(Role.AGGREGATOR, url))

    assert "must look like amqp://user:password@host:5672/vhost" in complaint


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read: No such file"),
        ("folder = ", "is not TOML"),
        ("amqp_urll = 'x'", "AMQP_URLL"),
        ("log_level = 'loud'", "LOG_LEVEL: Input should be 'debug', 'info'"),
    ],
    ids=["missing", "not TOML", "unknown key", "wrong value"],
)
def test_bad_settings_file_is_refused(scene: Scene, content: str | None, expected: str) -> None:
    file = scene.folder / "settings.toml"
    if content is not None:
        file.write_text(content, encoding="utf-8")

    complaint = complain(Role.AGGREGATOR, {**scene.settings(Role.AGGREGATOR), "config_file": str(file)})

    assert expected in complaint


def test_folder_that_cannot_be_made_is_named(scene: Scene) -> None:
    (scene.folder / "folder").write_text("a file is in the way", encoding="utf-8")

    for role, complaint in complain_all(scene.settings_of_all()).items():
        assert f"{prefix_of(role)}FOLDER: {scene.folder / 'folder' / role.value} cannot be used" in complaint


def test_empty_folder_is_refused_unless_it_is_the_first_start(scene: Scene) -> None:
    settings = {role: {**each, "new_state": "false"} for role, each in scene.settings_of_all().items()}

    for role, complaint in complain_all(settings).items():
        assert f"{settings[role]['folder']} holds no state of {scene.names[role]}" in complaint
        assert f"{prefix_of(role)}NEW_STATE=true" in complaint


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """A process of the party that is running in its folder."""
    folder.mkdir(parents=True)
    with (folder / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_second_process_of_a_party_is_refused_while_the_first_runs(scene: Scene) -> None:
    settings = scene.settings_of_all()
    with ExitStack() as stack:
        for each in settings.values():
            stack.enter_context(held(Path(each["folder"])))

        complaints = complain_all(settings)

    for role, complaint in complaints.items():
        assert f"another process is running in {settings[role]['folder']}" in complaint
        assert "a party has one active instance: stop it first" in complaint


# Who we are, and who the others are -----------------------------------------------------------------------


def lose_identity(scene: Scene, role: Role) -> None:
    scene.identity(role).unlink()


def open_identity(scene: Scene, role: Role) -> None:
    scene.identity(role).chmod(0o640)


def take_the_public_file(scene: Scene, role: Role) -> None:
    public = scene.folder / "files" / f"{scene.names[role]}.public.json"
    scene.identity(role).write_bytes(public.read_bytes())


def take_anothers_identity(scene: Scene, role: Role) -> None:
    other = scene.names[ROLES[ROLES.index(role) - 1]]
    replace_identity(scene, role, scene.files.parties.identities[other])


def take_a_new_key(scene: Scene, role: Role) -> None:
    replace_identity(scene, role, new_identity(scene.names[role], role, "elsewhere"))


def replace_identity(scene: Scene, role: Role, identity: Identity) -> None:
    private, _ = write_identity(identity, scene.folder / f"in place of {role.value}")
    private.replace(scene.identity(role))


def lose_roster(scene: Scene, role: Role) -> None:
    del role
    scene.files.roster.unlink(missing_ok=True)


def change_roster(scene: Scene, role: Role) -> None:
    """One that holds in itself, and that nobody has agreed on."""
    del role
    changed = scene.files.parties.roster.model_copy(update={"broker": "mallory"})
    scene.files.roster.write_text(changed.model_dump_json(), encoding="utf-8")


def forge_roster(scene: Scene, role: Role) -> None:
    """Another key under a party's name, which does not prove that it is its own."""
    key = scene.files.parties.roster.find(scene.names[role])
    assert key is not None
    text = scene.files.parties.roster.model_dump_json()
    scene.files.roster.write_text(text.replace(key.public_key, "58" + "66" * 31), encoding="utf-8")


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lose_identity, "{identity} cannot be read: No such file"),
        (open_identity, "others than its owner may read or change {identity}: chmod 600 {identity}"),
        (take_the_public_file, "{identity} is not an identity file"),
        (take_anothers_identity, "{identity} is the identity of {other}; this is {role}"),
        (take_a_new_key, "{name} is not in {roster} with the key of {identity}"),
        (lose_roster, "{roster} cannot be read: No such file"),
        (change_roster, "but {digest} is pinned; compare digests with the other parties"),
        (forge_roster, "does not prove that it holds its key"),
    ],
)
def test_identity_and_roster_must_be_there_private_and_agree(
    scene: Scene, spoil: Callable[[Scene, Role], None], expected: str
) -> None:
    settings = scene.settings_of_all()
    for role in ROLES:
        spoil(scene, role)

    complaints = complain_all(settings)

    for role, complaint in complaints.items():
        assert complaint.startswith(f"{role.value}: ")
        other = ROLES[ROLES.index(role) - 1]
        facts = {
            "role": role.value,
            "name": scene.names[role],
            "other": f"{other.value} {scene.names[other]}",
            "identity": scene.identity(role),
            "roster": scene.files.roster,
            "digest": scene.files.parties.roster.digest,
        }
        assert expected.format(**facts) in complaint
        assert not [secret for secret in scene.secrets() if secret in complaint]


# The policy and the tokens --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda file, _: file.unlink(), "cannot be read: No such file or directory; `hubbub policy init`"),
        (lambda file, _: file.write_text("min_clients = "), "is not TOML"),
        (write_policy, "roster_sha256: Field required"),
        (
            lambda file, role: write_policy(file, role, min_client=5),
            "'min_client' in the {service}'s policy; did you mean min_clients",
        ),
        (lambda file, role: write_policy(file, role, roster_sha256="0" * 64), f"but {'0' * 64} is pinned"),
    ],
    ids=["missing", "not TOML", "without a roster", "misspelt limit", "another roster"],
)
def test_trainer_and_aggregator_need_a_policy_that_can_be_obeyed(
    scene: Scene, spoil: Callable[[Path, Role], object], expected: str
) -> None:
    services = {Role.CLIENT: "trainer", Role.AGGREGATOR: "aggregator"}
    for role in services:
        spoil(scene.policy(role), role)

    complaints = complain_all({role: scene.settings(role) for role in services})

    for role, service in services.items():
        assert expected.format(service=service) in complaints[role]


def rewrite(path: Path, text: str) -> None:
    path.unlink()
    write_private(path, text)


@pytest.mark.broker
@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda files: files.token("read").unlink(), "read.token should hold a token and cannot be read"),
        (
            lambda files: files.token("change").chmod(0o644),
            "change.token holds a token and is open to other users",
        ),
        (lambda files: rewrite(files.token("read"), "short"), "the read token is shorter than 32 characters"),
        (lambda files: rewrite(files.token("read"), files.tokens.change), "token are the same; they must differ"),
    ],
    ids=["missing", "open to others", "too short", "equal"],
)
def test_coordinator_needs_two_tokens_that_nobody_else_can_read(
    scene: Scene, amqp_url: str, spoil: Callable[[PartyFiles], object], expected: str
) -> None:
    spoil(scene.files)

    with prepared(amqp_url, scene):
        complaint = complain(Role.COORDINATOR, scene.settings(Role.COORDINATOR, amqp_url))

    assert expected in complaint
    assert not [secret for secret in scene.secrets() if secret in complaint]


# The broker -----------------------------------------------------------------------------------------------


@contextmanager
def prepared(url: str, scene: Scene) -> Iterator[None]:
    broker, roster = SharedBroker(url), scene.files.parties.roster
    broker.prepare(roster)
    try:
        yield
    finally:
        broker.clear(roster)


@contextmanager
def nobody_listens() -> Iterator[int]:
    """A port that is ours and on which nobody can connect: it is bound but does not listen."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_broker_that_is_not_there_is_named_and_the_password_is_not(scene: Scene) -> None:
    with nobody_listens() as port:
        url = f"amqp://guest:{PASSWORD}@127.0.0.1:{port}/"
        complaints = complain_all(scene.settings_of_all(url), EXIT_FAILED)

    for complaint in complaints.values():
        assert f"no RabbitMQ answers at 127.0.0.1:{port}" in complaint
        assert "Check that the broker runs" in complaint


@pytest.mark.broker
@pytest.mark.parametrize("user", [f"guest:{PASSWORD}@", ""], ids=["in the URL", "of the identity"])
def test_wrong_credentials_are_refused_with_what_to_check(amqp_url: str, scene: Scene, user: str) -> None:
    parts = urlsplit(amqp_url)
    url = parts._replace(netloc=f"{user}{parts.hostname}:{parts.port}").geturl()

    complaints = complain_all(scene.settings_of_all(url), EXIT_FAILED)

    for role, complaint in complaints.items():
        name = "guest" if user else scene.names[role]
        assert f"{parts.hostname}:{parts.port} refuses user {name!r}" in complaint
        assert "Check user, password and virtual host" in complaint
        assert not [secret for secret in scene.secrets() if secret in complaint]


@pytest.mark.broker
def test_broker_that_was_not_told_of_the_roster_is_refused_with_the_command_to_use(
    amqp_url: str, scene: Scene
) -> None:
    complaints = complain_all(scene.settings_of_all(amqp_url), EXIT_FAILED)

    for complaint in complaints.values():
        assert "load the output of `hubbub roster broker-config` into the broker" in complaint


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [("amqps", "the TLS file {file} cannot be read: No such file"), ("amqp", "write amqps://")],
)
def test_tls_files_must_be_there_and_used(scene: Scene, scheme: str, expected: str) -> None:
    file = scene.folder / "ca.pem"
    tls = {"amqp_url": f"{scheme}://127.0.0.1:1/", "amqp_ca_file": str(file)}

    complaint = complain(Role.AGGREGATOR, scene.settings(Role.AGGREGATOR) | tls)

    assert expected.format(file=file) in complaint


@pytest.mark.broker
def test_port_that_is_taken_is_named_with_the_setting_to_change(amqp_url: str, scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, prepared(amqp_url, scene):
        port = taken.getsockname()[1]

        complaint = complain(Role.COORDINATOR, {**scene.settings(Role.COORDINATOR, amqp_url), "port": str(port)})

    assert f"cannot listen on 127.0.0.1:{port}" in complaint
    assert "set HUBBUB_COORDINATOR_PORT to a free port" in complaint
