"""All that docs/deploying.md tells people to type and to write down is tried: commands, certificates, files."""

import hashlib
import os
import re
import shlex
import shutil
import ssl
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # It ships no types.

from hubbub.trust.roster import Roster
from hubbub_aggregator.__main__ import AggregatorSettings
from hubbub_cli.kit_contents import unpack
from support.certificates import Authority
from support.command_line import make_hubbub
from support.program import run_program
from support.service_settings import SETTINGS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "deploying.md"
TEXT = PAGE.read_text(encoding="utf-8")
ALERTS = yaml.safe_load((ROOT / "k8s" / "grafana" / "alerts.yml").read_text(encoding="utf-8"))
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
SPOKEN_DIGEST = re.compile(r"\b[0-9a-f]{4}(?: [0-9a-f]{4}){15}\b")
NUMBER = re.compile(r"\d+\.?\d* (?:KB|MB|s|ms)\b")


def section(title: str) -> str:
    """The text below a heading, and below those under it."""
    begins = re.search(rf"^(#+) {re.escape(title)}$", TEXT, re.MULTILINE)
    assert begins, f"there is no section {title!r}"
    rest = TEXT[begins.end() :]
    ends = re.search(rf"^#{{1,{len(begins[1])}}} ", rest, re.MULTILINE)
    return rest[: ends.start()] if ends else rest


def blocks(kind: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


# When an alert fires ----------------------------------------------------------------------------------------


def test_every_alert_has_a_section_that_says_what_to_do_and_points_to_it() -> None:
    headings = re.findall(r"^### (.+)$", section("When an alert fires"), re.MULTILINE)

    assert headings == [rule["alert"] for rule in RULES]
    for rule in RULES:
        name = rule["alert"]
        assert rule["annotations"]["runbook"] == f"docs/deploying.md#{name.lower()}"
        assert re.search(r"^1\. ", section(name), re.MULTILINE), name


# What is typed ----------------------------------------------------------------------------------------------


def list_commands(text: str) -> Iterator[str]:
    """The lines of all shell blocks, those that go on with a backslash joined."""
    for block in blocks("sh", text):
        yield from block.replace("\\\n", " ").splitlines()


def test_from_nothing_to_an_approved_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    hubbub = make_hubbub(monkeypatch, capsys)
    lines = [line for line in list_commands(TEXT) if line.startswith("hubbub ")]
    Authority(tmp_path, "broker-ca")

    for line in lines:
        heard = hear_digest(line) if SPOKEN_DIGEST.search(line) else ""
        said = SPOKEN_DIGEST.sub(" ".join(re.findall("....", heard)), line)
        words = [path for word in shlex.split(said)[1:] for path in expand(word)]
        ended = hubbub(*words, *(["--yes"] if words[:2] == ["policy", "approve"] else []))

        assert ended.code == 0, f"{said}: {ended.err}"

    roster = Roster.model_validate_json(Path("roster.json").read_bytes())
    rows = re.findall(r"^\| ([\w-]*) ?\| [^|]+ \| `([\w-]+)` \|$", section("Who runs what"), re.MULTILINE)
    organisations = dict(name_organisations(rows))
    assert {party.name: party.organisation for party in roster.parties} == organisations
    checked = hubbub("policy", "check", "manifest.json", "--policy", "policy.toml", "--roster", "roster.json")
    assert "The trainer joins this run." in checked.out
    assert Path("definitions.json").stat().st_size > 0


def hear_digest(line: str) -> str:
    """The digest that a command compares: that of a roster, or that in the kit of clinic-a."""
    if " verify " in line:
        return Roster.model_validate_json(Path("roster.json").read_bytes()).digest
    return hashlib.sha256(unpack(Path("kits/clinic-a.kit.tar").read_bytes())[1]["kit.json"]).hexdigest()


def expand(word: str) -> list[str]:
    """Expand a word with a star in it as a shell does."""
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]


def name_organisations(rows: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Whose each party is; an empty cell means the organisation above."""
    last = ""
    for organisation, party in rows:
        last = organisation or last
        yield party, last


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl is installed")
def test_certificate_of_the_broker_is_made_and_stands_up_to_a_strict_check(tmp_path: Path) -> None:
    script = "".join(blocks("sh", section("TLS")))

    done = run_program("/bin/sh", "-euc", script, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("broker.crt: OK\n")
    assert {path.name for path in tmp_path.iterdir() if path.stat().st_mode & 0o077} == set()
    shake_hands(tmp_path, "broker.example")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.example"):
        shake_hands(tmp_path, "other.example")


def shake_hands(folder: Path, name: str) -> None:
    """Begin TLS as a party and as a broker do, in memory, until both are content."""
    broker = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    broker.load_cert_chain(folder / "broker.crt", folder / "broker.key")
    party = ssl.create_default_context(cafile=folder / "broker-ca.pem")
    # As later versions do: only what is in subjectAltName counts.
    party.hostname_checks_common_name = False
    party.verify_flags |= ssl.VERIFY_X509_STRICT
    to_broker, to_party = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        party.wrap_bio(to_party, to_broker, server_hostname=name),
        broker.wrap_bio(to_broker, to_party, server_side=True),
    ]
    while sides:
        side = sides.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            sides.append(side)


@pytest.mark.skipif(shutil.which("nft") is None or os.geteuid() != 0, reason="it takes nft, and root")
def test_firewall_is_one_that_nftables_takes() -> None:
    [rules] = blocks("nft")

    done = run_program("nft", "--check", "--file", "-", input=rules)

    assert done.returncode == 0, done.stderr


# What is written down ---------------------------------------------------------------------------------------


def sample_settings() -> dict[str, dict[str, Any]]:
    """The sample settings, by the service that they are for."""
    found = re.findall(r"^`/etc/hubbub/(\w+)\.toml`.*?^```toml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return {service: tomllib.loads(block) for service, block in found}


def test_settings_of_every_service_are_given_and_are_settings() -> None:
    samples = sample_settings()

    assert samples.keys() == SETTINGS.keys()
    for service, model in SETTINGS.items():
        required = {name for name, field in model.model_fields.items() if field.is_required()}
        assert required <= samples[service].keys() <= model.model_fields.keys()
        model(**samples[service])


def test_unit_for_systemd_starts_a_service_with_its_settings_in_its_folder(tmp_path: Path) -> None:
    unit = next(block for block in blocks("ini") if "[Service]" in block)

    assert "ExecStart=/opt/hubbub/bin/hubbub %i --config /etc/hubbub/%i.toml\n" in unit
    for service, sample in sample_settings().items():
        assert sample["folder"] == f"/var/lib/hubbub/{service}", "what StateDirectory makes"
    if shutil.which("systemd-analyze"):
        # A program that is there, so that nothing is complained of but the unit.
        path = tmp_path / "hubbub@trainer.service"
        path.write_text(unit.replace("/opt/hubbub/bin/hubbub", shutil.which("true") or "/bin/true"))
        done = run_program("systemd-analyze", "verify", "--recursive-errors=no", path)
        assert path.name not in done.stderr, done.stderr


def test_a_trainer_is_started_when_all_that_its_settings_name_is_made_and_in_its_place() -> None:
    [block] = [block for block in blocks("console") if "systemctl enable" in block]
    put, started = block.split("systemctl enable")
    sample = sample_settings()["trainer"]
    needed = {Path(sample[name]) for name in ("identity", "roster", "policy", "amqp_ca_file", "task")}

    placed = {Path("/etc/hubbub", Path(word).name) for word in put.split() if Path(word).suffix}

    assert {*needed, Path("/etc/hubbub/trainer.toml")} == placed
    assert "hubbub@trainer" in started
    assert TEXT.index("hubbub policy init --roster") < TEXT.index(block)


def test_compose_file_of_an_aggregator_gives_what_its_settings_file_does_not() -> None:
    [text] = blocks("yaml")
    [service] = yaml.safe_load(text)["services"].values()
    mounts = {line.split(":")[1] for line in service["volumes"]}

    given = service["environment"].items()
    names = {name.removeprefix("HUBBUB_AGGREGATOR_").lower(): value for name, value in given}
    config = Path(names.pop("config_file"))
    settings = AggregatorSettings(**(sample_settings()["aggregator"] | names))

    assert service["image"].startswith("hubbub-aggregator:")
    for path in (config, settings.identity, settings.roster, settings.amqp_ca_file, settings.folder):
        assert path is not None
        assert any(path.is_relative_to(mount) for mount in mounts), f"{path} is not mounted"


# What was measured ------------------------------------------------------------------------------------------


def test_every_number_of_the_sizing_table_is_in_the_file_that_it_is_from() -> None:
    rows = [line for line in section("Sizing").splitlines() if line.startswith("| ") and NUMBER.search(line)]

    assert len(rows) >= 6
    for row in rows:
        source = read_source(row)
        for number in NUMBER.findall(row):
            assert f" {number} " in source, f"{number} is not in the file that {row!r} is from"


def test_memory_is_what_the_long_run_took() -> None:
    [sentence] = re.findall(r"^Resident memory.*?\n\n", TEXT, re.MULTILINE | re.DOTALL)
    source = read_source(sentence)

    for number in re.findall(r"(\d+\.?\d*) MB", sentence):
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.]\d)", source), number


def read_source(text: str) -> str:
    [name] = set[str](re.findall(r"\]\((benchmarks\.md|results/[^)]+)\)", text))
    return (PAGE.parent / name).read_text(encoding="utf-8")
