"""A service that cannot start says why and what to do, in one line, and ends."""

import fcntl
import json
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hubbub.ids import PartyId, Role
from hubbub.runtime.process import EXIT_CONFIGURATION, EXIT_FAILED
from hubbub.trust.identity import Identity, new_identity, write_identity
from support.fork_server import ForkedProcess, start_forked
from support.party_files import PartyFiles, write_party_files, write_policy, write_private
from support.patience import HANG_S
from support.processes import MODULES, SharedBroker, environment_of, prefix_of
from support.twins import new_party

PASSWORD = "sesame"
ROLES = tuple(Role)
# Nothing in these tests gets as far as to use it.
NOWHERE = f"amqp://guest:{PASSWORD}@127.0.0.1:1/"


@dataclass(frozen=True, slots=True)
class Scene:
    """One party of each role, with all that it needs but a broker."""

    folder: Path
    files: PartyFiles
    names: Mapping[Role, PartyId]
    stack: ExitStack
    """Ends with the test."""

    def settings(self, role: Role, url: str = NOWHERE) -> dict[str, str]:
        folder = self.folder / "folder" / role.value
        return {**self.files.settings_for(self.names[role]), "amqp_url": url, "folder": str(folder)}

    def identity(self, role: Role) -> Path:
        return self.files.identity(self.names[role])

    def facts(self, role: Role) -> dict[str, object]:
        """Facts that a complaint may quote."""
        other = another(role)
        return {
            "role": role.value,
            "service": MODULES[role].removeprefix("hubbub_"),
            "prefix": prefix_of(role),
            "name": self.names[role],
            "other": f"{other.value} {self.names[other]}",
            "identity": self.identity(role),
            "roster": self.files.roster,
            "digest": self.files.parties.roster.digest,
            "folder": self.settings(role)["folder"],
            "here": self.folder,
        }

    def complaints(
        self, settings: Mapping[Role, Mapping[str, str]], code: int = EXIT_CONFIGURATION
    ) -> dict[Role, str]:
        """Start these services, all at once, and return with which words each of them ended."""
        with tempfile.TemporaryDirectory() as folder:
            files = {role: Path(folder) / role.value for role in settings}
            processes = [
                start_forked(["-m", MODULES[role]], environment_of(role, each), files[role])
                for role, each in settings.items()
            ]
            codes = {wait_for_end(process) for process in processes}
            outputs = {role: file.read_text("utf-8") for role, file in files.items()}
        assert codes == {code}, outputs
        return {role: self.find_complaint(output) for role, output in outputs.items()}

    def find_complaint(self, output: str) -> str:
        """The one line with which it ended; all other lines are ordinary log lines."""
        identities = self.files.parties.identities.values()
        passwords = [PASSWORD, *(identity.broker_password for identity in identities)]
        keys = [identity.key.to_bytes().hex() for identity in identities]
        for secret in (*passwords, *keys, self.files.tokens.read, self.files.tokens.change, "Traceback"):
            assert secret not in output
        *before, last = output.splitlines()
        assert {json.loads(line)["level"] for line in before} <= {"info"}, output
        if not last.startswith("{"):
            return last
        record = json.loads(last)
        assert record["level"] == "error"
        assert "traceback" not in record
        return str(record["message"])


def another(role: Role) -> Role:
    return ROLES[ROLES.index(role) - 1]


def wait_for_end(process: ForkedProcess) -> int:
    """Its exit code; it does not outlive this."""
    try:
        return process.wait(timeout=HANG_S)
    finally:
        process.kill()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    names = {role: new_party(role.value) for role in ROLES}
    files = write_party_files(tmp_path / "files", {name: role for role, name in names.items()})
    with ExitStack() as stack:
        yield Scene(tmp_path, files, names, stack)


def test_every_missing_setting_is_named(scene: Scene) -> None:
    own = {Role.COORDINATOR: ("ROSTER_SHA256", "READ_TOKEN_FILE", "CHANGE_TOKEN_FILE")}

    for role, complaint in scene.complaints({role: {} for role in ROLES}).items():
        for setting in ("IDENTITY", "ROSTER", "AMQP_URL", "FOLDER", *own.get(role, ("POLICY",))):
            assert f"{prefix_of(role)}{setting}: Field required" in complaint


# Files and settings ---------------------------------------------------------------------------------------

Spoil = Callable[[Scene, Role], object]
"""Spoils something; a dictionary that it returns are settings to change."""


def set_to(**settings: str) -> Spoil:
    return lambda _scene, _role: settings


def block_folder(scene: Scene, _: Role) -> None:
    (scene.folder / "folder").write_text("a file is in the way", encoding="utf-8")


def hold_lock(scene: Scene, role: Role) -> None:
    """A process of the party is running in its folder."""
    folder = Path(scene.settings(role)["folder"])
    folder.mkdir(parents=True)
    lock = scene.stack.enter_context((folder / "lock").open("wb"))
    fcntl.flock(lock, fcntl.LOCK_EX)


def settings_file(content: str | None) -> Spoil:
    def write(scene: Scene, _: Role) -> dict[str, str]:
        file = scene.folder / "settings.toml"
        if content is not None:
            file.write_text(content, encoding="utf-8")
        return {"config_file": str(file)}

    return write


def take_the_public_file(scene: Scene, role: Role) -> None:
    public = scene.folder / "files" / f"{scene.names[role]}.public.json"
    scene.identity(role).write_bytes(public.read_bytes())


def identity_from(make: Callable[[Scene, Role], Identity]) -> Spoil:
    def replace(scene: Scene, role: Role) -> None:
        private, _ = write_identity(make(scene, role), scene.folder / f"in place of {role.value}")
        private.replace(scene.identity(role))

    return replace


def change_roster(scene: Scene, _: Role) -> None:
    """One that holds in itself, and that nobody has agreed on."""
    changed = scene.files.parties.roster.model_copy(update={"broker": "mallory"})
    scene.files.roster.write_text(changed.model_dump_json(), encoding="utf-8")


def forge_roster(scene: Scene, role: Role) -> None:
    """Another key under a party's name, which does not prove that it is its own."""
    key = scene.files.parties.roster.find(scene.names[role])
    assert key is not None
    text = scene.files.parties.roster.model_dump_json()
    scene.files.roster.write_text(text.replace(key.public_key, "58" + "66" * 31), encoding="utf-8")


def policy(**limits: object) -> Spoil:
    return lambda scene, role: write_policy(scene.files.policy(scene.names[role]), role, **limits)


def tls(scheme: str) -> Spoil:
    return lambda scene, _: {"amqp_url": f"{scheme}://127.0.0.1:1/", "amqp_ca_file": str(scene.folder / "ca.pem")}


MEMBERS = (Role.CLIENT, Role.AGGREGATOR)
ONE = (Role.AGGREGATOR,)
NO_URL = "must look like amqp://user:password@host:5672/vhost"
CASES: dict[str, tuple[tuple[Role, ...], Spoil, str]] = {
    "misspelt setting": (ROLES, set_to(amqp_urll=NOWHERE), "{prefix}AMQP_URLL: no such setting"),
    "URL of HTTP": (ONE, set_to(amqp_url=f"http://guest:{PASSWORD}@localhost/"), NO_URL),
    "no URL": (ONE, set_to(amqp_url=PASSWORD), NO_URL),
    "URL without host": (ONE, set_to(amqp_url=f"amqp://:{PASSWORD}@:x/"), NO_URL),
    "settings file missing": (ONE, settings_file(None), "cannot be read: No such file"),
    "settings file not TOML": (ONE, settings_file("folder = "), "is not TOML"),
    "settings file with unknown key": (ONE, settings_file("amqp_urll = 'x'"), "AMQP_URLL"),
    "settings file with wrong value": (
        ONE,
        settings_file("log_level = 'loud'"),
        "LOG_LEVEL: Input should be 'debug'",
    ),
    "folder blocked": (ROLES, block_folder, "{prefix}FOLDER: {folder} cannot be used"),
    "folder empty": (ROLES, set_to(new_state="false"), "{folder} holds no state of {name}"),
    "folder in use": (ROLES, hold_lock, "another process is running in {folder}"),
    "identity missing": (ROLES, lambda s, r: s.identity(r).unlink(), "{identity} cannot be read: No such file"),
    "identity open to others": (
        ROLES,
        lambda s, r: s.identity(r).chmod(0o640),
        "{role}: others than its owner may read or change {identity}: chmod 600 {identity}",
    ),
    "public file": (ROLES, take_the_public_file, "{identity} is not an identity file"),
    "identity of another": (
        ROLES,
        identity_from(lambda s, r: s.files.parties.identities[s.names[another(r)]]),
        "{identity} is the identity of {other}; this is {role}",
    ),
    "new key": (
        ROLES,
        identity_from(lambda s, r: new_identity(s.names[r], r, "elsewhere")),
        "{name} is not in {roster} with the key of {identity}",
    ),
    "roster missing": (
        ROLES,
        lambda s, _: s.files.roster.unlink(missing_ok=True),
        "{roster} cannot be read: No such file",
    ),
    "roster changed": (ROLES, change_roster, "but {digest} is pinned; compare digests with the other parties"),
    "roster forged": (ROLES, forge_roster, "does not prove that it holds its key"),
    "policy missing": (
        MEMBERS,
        lambda s, r: s.files.policy(s.names[r]).unlink(),
        "cannot be read: No such file or directory; `hubbub policy init`",
    ),
    "policy not TOML": (
        MEMBERS,
        lambda s, r: s.files.policy(s.names[r]).write_text("min_clients = "),
        "is not TOML",
    ),
    "policy without roster": (MEMBERS, policy(), "roster_sha256: Field required"),
    "policy with misspelt limit": (
        MEMBERS,
        policy(min_client=5),
        "'min_client' in the {service}'s policy; did you mean min_clients",
    ),
    "policy for another roster": (MEMBERS, policy(roster_sha256="0" * 64), f"but {'0' * 64} is pinned"),
    "TLS file missing": (ONE, tls("amqps"), "the TLS file {here}/ca.pem cannot be read: No such file"),
    "TLS file without TLS": (ONE, tls("amqp"), "write amqps://"),
}
ADVICE = {
    "misspelt setting": "{prefix}AMQP_URL,",
    "folder empty": "{prefix}NEW_STATE=true",
    "folder in use": "a party has one active instance: stop it first",
}


@pytest.mark.parametrize("case", CASES)
def test_settings_and_files_that_are_missing_wrong_or_open_to_others_are_named(scene: Scene, case: str) -> None:
    roles, spoil, expected = CASES[case]
    changes = {role: spoil(scene, role) for role in roles}
    settings = {
        role: scene.settings(role) | (change if isinstance(change, dict) else {})
        for role, change in changes.items()
    }

    complaints = scene.complaints(settings)

    for role, complaint in complaints.items():
        for part in (expected, ADVICE.get(case, "")):
            assert part.format(**scene.facts(role)) in complaint


# The broker, and what is looked at after it ---------------------------------------------------------------


@contextmanager
def prepared(url: str, scene: Scene) -> Iterator[None]:
    broker, roster = SharedBroker(url), scene.files.parties.roster
    broker.prepare(roster)
    try:
        yield
    finally:
        broker.clear(roster)


def rewrite(path: Path, text: str) -> None:
    path.unlink()
    write_private(path, text)


def take_port(scene: Scene, _: Role) -> dict[str, str]:
    taken = scene.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return {"port": str(taken.getsockname()[1])}


@pytest.mark.broker
@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda s, _: s.files.token("read").unlink(), "read.token should hold a token and cannot be read"),
        (
            lambda s, _: s.files.token("change").chmod(0o644),
            "change.token holds a token and is open to other users",
        ),
        (lambda s, _: rewrite(s.files.token("read"), "short"), "the read token is shorter than 32 characters"),
        (lambda s, _: rewrite(s.files.token("read"), s.files.tokens.change), "token are the same; they must"),
        (take_port, "cannot listen on 127.0.0.1:{port}: set HUBBUB_COORDINATOR_PORT to a free port"),
    ],
    ids=["token missing", "token open to others", "token too short", "tokens equal", "port taken"],
)
def test_coordinator_needs_two_tokens_that_nobody_else_can_read_and_a_free_port(
    scene: Scene, amqp_url: str, spoil: Spoil, expected: str
) -> None:
    change = spoil(scene, Role.COORDINATOR)
    settings = scene.settings(Role.COORDINATOR, amqp_url) | (change if isinstance(change, dict) else {})

    with prepared(amqp_url, scene):
        [complaint] = scene.complaints({Role.COORDINATOR: settings}).values()

    for part in expected.split(": "):
        assert part.format(**settings) in complaint


def test_broker_that_is_not_there_is_named_and_the_password_is_not(scene: Scene) -> None:
    with socket.socket() as held:
        # A port that is ours and on which nobody can connect: it is bound but does not listen.
        held.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{held.getsockname()[1]}"
        url = f"amqp://guest:{PASSWORD}@{where}/"
        complaints = scene.complaints({role: scene.settings(role, url) for role in ROLES}, EXIT_FAILED)

    for complaint in complaints.values():
        assert f"no RabbitMQ answers at {where}" in complaint
        assert "Check that the broker runs" in complaint


@pytest.mark.broker
@pytest.mark.parametrize("user", [f"guest:{PASSWORD}@", ""], ids=["in the URL", "of the identity"])
def test_wrong_credentials_are_refused_with_what_to_check(amqp_url: str, scene: Scene, user: str) -> None:
    parts = urlsplit(amqp_url)
    where = f"{parts.hostname}:{parts.port}"
    url = parts._replace(netloc=f"{user}{where}").geturl()

    complaints = scene.complaints({role: scene.settings(role, url) for role in ROLES}, EXIT_FAILED)

    for role, complaint in complaints.items():
        assert f"{where} refuses user {'guest' if user else scene.names[role]!r}" in complaint
        assert "Check user, password and virtual host" in complaint


@pytest.mark.broker
def test_broker_that_was_not_told_of_the_roster_is_refused_with_the_command_to_use(
    amqp_url: str, scene: Scene
) -> None:
    complaints = scene.complaints({role: scene.settings(role, amqp_url) for role in ROLES}, EXIT_FAILED)

    for complaint in complaints.values():
        assert "load the output of `hubbub roster broker-config` into the broker" in complaint
