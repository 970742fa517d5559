"""Contents of kits: all that each party of a federation installs, but for its private key.

A kit follows from a few facts: roster, addresses of the broker, its authority, and the version of Hubbub. Whoever
receives one can therefore write it again and compare, and one digest, over the facts, stands for all kits of a
federation.
"""

from __future__ import annotations

import hashlib
import io
import ipaddress
import json
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from hubbub import __version__
from hubbub.disk import IGNORE_FILE
from hubbub.errors import ConfigurationError
from hubbub.ids import Role, is_party_id
from hubbub.transport.access import Access, Tls
from hubbub.trust.roster import PublicIdentity, Roster
from hubbub_cli.party_settings import Setting, explain_settings
from hubbub_cli.policy import explain_policy, policy_model_for

FACTS_FILE, ROSTER_FILE, CA_FILE = "kit.json", "roster.json", "broker-ca.pem"
SETTINGS_FILE, POLICY_FILE, START_FILE = "settings.toml", "policy.toml", "start.sh"
IDENTITY_FILE = "secret/identity.json"
TOKEN_FILES: Mapping[str, str] = MappingProxyType(
    {f"{right}_token_file": f"secret/{right}.token" for right in ("read", "change")}
)
SUFFIX = ".template"
METRICS_PORT, INTERFACE_PORT = 8751, 8750
_FILE_MODE, _PROGRAM_MODE = 0o644, 0o755
_LARGEST_BYTES = 2**24
# Names are shown on a terminal, and are files after `tar -xf`.
_NAME = re.compile(r"\.?[A-Za-z0-9_-][A-Za-z0-9._-]*")
_PRIVATE = (b"PRIVATE KEY-----", b'"private_key"', b'"broker_password"')
_PRIVATE_NAMES = (".identity.json", ".key", ".token")

SERVICES: Mapping[Role, str] = MappingProxyType(
    {Role.CLIENT: "trainer", Role.AGGREGATOR: "aggregator", Role.COORDINATOR: "coordinator"}
)

Files = Mapping[str, bytes]
"""Content of a kit's files, by name."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the kits of a federation follow from."""

    roster: Roster
    amqp_url: str
    """Without a user and a password: each party has its own in its identity."""
    ca: bytes = field(default=b"", repr=False)
    """CA of the broker's certificate, as PEM; empty if it is one of the system's authorities."""

    @property
    def canonical(self) -> bytes:
        """Content of `kit.json`, which is the same in all kits."""
        facts = {
            "format": 1,
            "hubbub": __version__,
            "roster_sha256": self.roster.digest,
            "amqp_url": self.amqp_url,
            "broker_ca_sha256": hashlib.sha256(self.ca).hexdigest() if self.ca else None,
        }
        return f"{json.dumps(facts, indent=2, sort_keys=True)}\n".encode()

    @property
    def digest(self) -> str:
        """SHA-256 of `kit.json`: all that parties compare over a second channel."""
        return hashlib.sha256(self.canonical).hexdigest()

    def write_kit(self, party: PublicIdentity) -> Files:
        """Return the files of a party's kit."""
        words = self._find_words(party)
        templates = (each for each in files("hubbub_cli").joinpath("kit_files").iterdir())
        contents = {
            each.name.removesuffix(SUFFIX): _fill_in(each.read_text(encoding="utf-8"), words).encode()
            for each in templates
            if each.name.endswith(SUFFIX)
        }
        contents[IGNORE_FILE] = b"secret/\nstate/\n"
        contents[FACTS_FILE] = self.canonical
        contents[ROSTER_FILE] = f"{self.roster.model_dump_json(indent=2)}\n".encode()
        contents[SETTINGS_FILE] = explain_settings(party.role, self._choose_settings(party.role)).encode()
        if self.ca:
            contents[CA_FILE] = self.ca
        if party.role is not Role.COORDINATOR:
            policy = policy_model_for(party.role)(roster_sha256=self.roster.digest)
            contents[POLICY_FILE] = explain_policy(policy).encode()
        return contents

    def _choose_settings(self, role: Role) -> dict[str, Setting]:
        settings: dict[str, Setting] = {
            "identity": IDENTITY_FILE,
            "roster": ROSTER_FILE,
            "amqp_url": self.amqp_url,
            "amqp_ca_file": CA_FILE if self.ca else None,
            "folder": "state",
        }
        if role is Role.COORDINATOR:
            return {**settings, **TOKEN_FILES, "roster_sha256": self.roster.digest}
        return {**settings, "policy": POLICY_FILE, "metrics_port": METRICS_PORT}

    def _find_words(self, party: PublicIdentity) -> dict[str, str]:
        """Return what stands for each placeholder of the templates."""
        service = SERVICES[party.role]
        hosts = [entrance.host for entrance in Access(self.amqp_url).entrances]
        words = {
            "name": party.name,
            "organisation": party.organisation,
            "role": party.role.value,
            "article": "an" if party.role is Role.AGGREGATOR else "a",
            "service": service,
            "prefix": f"HUBBUB_{service.upper()}_",
            "version": __version__,
            "roster_sha256": self.roster.digest,
            "urls": json.dumps([url.strip() for url in self.amqp_url.split(",")]),
            "cidrs": json.dumps(_find_networks(hosts)),
        }
        own = {name: _fill_in(text, words) for name, text in _OF_ROLE[party.role].items()}
        if self.ca:
            own["set_files"] = f" --set-file broker.ca={CA_FILE}{own['set_files']}"
        return words | own


_METRICS = {
    "port": str(METRICS_PORT),
    "environment": "",
    "ports": "",
    "from_files": f"--from-file={IDENTITY_FILE}",
    "set_files": " --set-file '{{service}}s[0].policy.content=policy.toml'",
    "parties": "{{service}}s:\n  - {name: {{name}}, secret: {{name}}}",
    "own_files": (
        "5. **Policy.** Read `policy.toml` line by line: every limit has its meaning above it. Unchanged, it"
        " allows no run\n   that you have not approved yourself.\n"
    ),
    "own_settings": "",
    "mounts": "",
    "volumes": "",
}
_OF_ROLE: Mapping[Role, Mapping[str, str]] = MappingProxyType(
    {
        Role.AGGREGATOR: _METRICS,
        Role.CLIENT: _METRICS
        | {
            "environment": "      {{prefix}}CACHE_FOLDER: /var/cache/hubbub\n",
            "mounts": "      - cache:/var/cache/hubbub\n",
            "volumes": "  # What the task fetches, if it does.\n  cache:\n",
            "own_settings": (
                ' Name your own task and\n   your data, in this folder: `task = "task.py"`, `data = "data"`.'
            ),
        },
        Role.COORDINATOR: {
            **_METRICS,
            "port": str(INTERFACE_PORT),
            "ports": (
                "    # The interface, for this machine alone: it does not speak TLS.\n"
                f'    ports: ["127.0.0.1:{INTERFACE_PORT}:{INTERFACE_PORT}"]\n'
            ),
            "from_files": " ".join(f"--from-file={name}" for name in (IDENTITY_FILE, *TOKEN_FILES.values())),
            "set_files": "",
            "parties": "coordinator: {enabled: true, name: {{name}}, secret: {{name}}}",
            "own_files": (
                "5. **Tokens**, for whoever may watch runs and for whoever may begin and end them:\n\n"
                "       hubbub keys tokens --out secret\n"
            ),
        },
    }
)
"""Words that differ between the roles, by placeholder."""


def _fill_in(text: str, words: Mapping[str, str]) -> str:
    for name, word in words.items():
        text = text.replace("{{" + name + "}}", word)
    return text


def _find_networks(hosts: list[str]) -> list[str]:
    """Return the networks of hosts that are addresses; none if one of them is a name."""
    try:
        return [str(ipaddress.ip_network(host)) for host in hosts]
    except ValueError:
        return []


def gather_facts(roster: Roster, amqp_url: str, ca_file: Path | None) -> Facts:
    """Return what the kits follow from.

    Raises `ConfigurationError` if the parties could not connect with it, or if it would give a secret to all.
    """
    entrances = Access(amqp_url, tls=Tls(ca_file=ca_file)).entrances
    if any(each.url.user is not None or each.url.password is not None for each in entrances):
        raise ConfigurationError(
            "the broker's URL holds a user or a password, and every party would get it: leave it out, for each has"
            " a login of its own in its identity"
        )
    if entrances[0].url.scheme != "amqps":
        raise ConfigurationError(
            "the broker's URL begins with amqp://, and passwords would cross the network in the clear: have TLS at"
            " the broker, and write amqps://. For a trial on one machine there is `hubbub federation`"
        )
    ca = b"" if ca_file is None else ca_file.read_bytes()
    if find_private({CA_FILE: ca}):
        raise ConfigurationError(
            f"{ca_file} holds a private key, and every party would get it: name a file with the certificate alone"
        )
    return Facts(roster, amqp_url, ca)


# Archives -------------------------------------------------------------------------------------------------


def pack(party: str, contents: Files) -> bytes:
    """Return a kit as a tar archive, the same bytes for the same contents."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(contents):
            entry = tarfile.TarInfo(f"{party}/{name}")
            entry.size = len(contents[name])
            entry.mode = _PROGRAM_MODE if name == START_FILE else _FILE_MODE
            archive.addfile(entry, io.BytesIO(contents[name]))
    return out.getvalue()


def unpack(content: bytes) -> tuple[str, Files]:
    """Return the party and the files of an archive; raise `ConfigurationError` if it is no kit."""
    found: dict[str, bytes] = {}
    parties: set[str] = set()
    try:
        if len(content) > _LARGEST_BYTES:
            raise ConfigurationError(f"it is larger than any kit ({len(content):,} bytes)")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for entry in archive:
                party, _, name = entry.name.partition("/")
                stream = archive.extractfile(entry) if entry.isreg() else None
                if stream is None or not is_party_id(party) or not _NAME.fullmatch(name) or name in found:
                    raise ConfigurationError(f"{entry.name!r} is no file of a kit")
                parties.add(party)
                found[name] = stream.read()
    except tarfile.TarError as error:
        raise ConfigurationError(f"it is no tar archive ({error})") from None
    if len(parties) != 1:
        raise ConfigurationError(f"a kit has one folder, for one party, and this one has {len(parties)}")
    return parties.pop(), found


def find_private(contents: Files) -> list[str]:
    """Return the names of files that hold a private key or a password, or are called as if they did."""
    return sorted(
        name
        for name, content in contents.items()
        if name.endswith(_PRIVATE_NAMES) or any(mark in content for mark in _PRIVATE)
    )
