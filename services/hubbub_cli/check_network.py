"""What `hubbub doctor` finds elsewhere: the broker, a party's rights there, the coordinator, its clock."""

from __future__ import annotations

import asyncio
import ipaddress
from pathlib import Path

from hubbub import __version__
from hubbub.errors import BrokerUnreachable, ConfigurationError, HubbubError, TransportError
from hubbub.ids import Role
from hubbub.transport.access import Access, Login, Tls
from hubbub.transport.rabbitmq import RabbitMqTransport, try_rights
from hubbub.transport.rights import find_duties, find_taboos
from hubbub.transport.topology import received_from, topology_for
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster
from hubbub_cli.client import Client, CoordinatorFailed, CoordinatorRefused, Door, Json, read_token
from hubbub_cli.findings import Findings
from hubbub_cli.patient import Patient

CONNECT_S = 5.0
ANSWER_S = 5.0
SKEW_S = 5.0
"""A clock that is off by more makes deadlines and logs mislead."""
SHOWN_FAULTS = 5
BROKER_CONFIG = "`hubbub roster broker-config`"


def check_broker(patient: Patient, identity: Identity | None, roster: Roster | None, found: Findings) -> None:
    """Go in at the broker as the party itself does, look for its queue, and try its rights."""
    url = patient.settings.get("amqp_url")
    if url is None or identity is None:
        missing = (
            f"not set: {patient.variable('amqp_url')}" if url is None else "the party's identity is needed for it"
        )
        found.skip("broker", missing)
        return
    login = Login(identity.name, identity.broker_password)
    tls = Tls(
        ca_file=patient.path("amqp_ca_file"),
        cert_file=patient.path("amqp_cert_file"),
        key_file=patient.path("amqp_key_file"),
    )
    try:
        access = Access(url, login, tls)
        asyncio.run(_visit(url, identity, login, tls))
    except ConfigurationError as error:
        found.complain("broker", str(error), f"correct {patient.variable('amqp_url')}, or the TLS files")
        return
    except BrokerUnreachable as error:
        found.complain("broker", str(error), f"start it, or correct {patient.variable('amqp_url')}")
        return
    except TransportError as error:
        mend = f"have its operator load what {BROKER_CONFIG} writes, and compare login and certificates"
        found.complain("broker", str(error), mend)
        return
    over = "TLS" if access.context is not None else "no TLS"
    queues = ", ".join(received_from(identity.name, identity.role))
    found.praise("broker", f"{access.where} lets {access.user} in, over {over}; its queues are there: {queues}")
    if access.context is None and not all(_is_local(entrance.host) for entrance in access.entrances):
        found.warn("broker", "the password crosses the network in the clear", "have TLS there, and write amqps://")
    _check_rights(url, identity, roster, login, tls, found)


async def _visit(url: str, identity: Identity, login: Login, tls: Tls) -> None:
    topology = topology_for(identity.name, identity.role)
    name = f"hubbub doctor {identity.name}"
    async with RabbitMqTransport(
        url, topology, connection_name=name, login=login, tls=tls, connect_timeout_s=CONNECT_S
    ):
        pass


def _check_rights(
    url: str, identity: Identity, roster: Roster | None, login: Login, tls: Tls, found: Findings
) -> None:
    """Try all that this party must be able to do, and all that it must not."""
    others = [party.name for party in roster.parties] if roster is not None else []
    duties = find_duties(identity.name, identity.role)
    taboos = find_taboos(identity.name, identity.role, others)
    try:
        allowed = asyncio.run(try_rights(url, (*duties, *taboos), login=login, tls=tls, timeout_s=CONNECT_S))
    except TransportError as error:
        found.complain("rights", str(error), "look at the broker's log, and try again")
        return
    lacking = [str(attempt) for attempt in duties if not allowed[attempt]]
    excess = [str(attempt) for attempt in taboos if allowed[attempt]]
    if lacking:
        mend = f"have the broker's operator load what {BROKER_CONFIG} writes"
        found.complain("rights", f"{identity.name} may not {_join(lacking)}", mend)
    if excess:
        mend = (
            f"have the broker's operator load what {BROKER_CONFIG} writes again, and look at"
            f" `rabbitmqctl list_user_permissions {identity.name}`"
        )
        found.complain("rights", f"{identity.name} may also {_join(excess)}", mend)
    if not lacking and not excess:
        tried = f"{len(duties)} things that it needs are allowed, {len(taboos)} that it does not are refused"
        found.praise("rights", tried)


def _join(faults: list[str]) -> str:
    rest = len(faults) - SHOWN_FAULTS
    return "; ".join(faults[:SHOWN_FAULTS]) + (f"; and {rest} more" if rest > 0 else "")


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_tokens(patient: Patient, found: Findings) -> None:
    """Look whether a coordinator's two tokens are there, differ and are for its owner alone."""
    from hubbub_coordinator.api.access import read_tokens  # noqa: PLC0415  (Only a coordinator has them.)

    reading, changing = patient.path("read_token_file"), patient.path("change_token_file")
    if reading is None or changing is None:
        found.skip(
            "tokens", f"not set: {patient.variable('read_token_file')}, {patient.variable('change_token_file')}"
        )
        return
    try:
        read_tokens(reading, changing)
    except ConfigurationError as error:
        found.complain("tokens", str(error), "put the file right, and start the coordinator again")
    else:
        found.praise("tokens", "one to read and one to change, each for its owner alone")


def check_coordinator(
    patient: Patient, url: str | None, token_file: Path | None, ca_file: Path | None, found: Findings
) -> None:
    """Ask the coordinator whether it is there, ready and of this version, and compare clocks."""
    url = url or _find_own_address(patient)
    if url is None:
        for check in ("coordinator", "clock"):
            found.skip(check, "not set: --url (HUBBUB_URL)")
        return
    if token_file is None and patient.role is Role.COORDINATOR:
        token_file = patient.path("read_token_file")
    try:
        token = None if token_file is None else read_token(token_file)
        door = Door(url=url, token=token, ca_file=ca_file)
        asyncio.run(_ask_all(door, found))
    except CoordinatorRefused as error:
        found.complain(
            "coordinator", str(error), "use one of the two tokens that the coordinator was started with"
        )
    except ConfigurationError as error:
        found.complain("coordinator", str(error), "correct --url, --token-file or --ca-file")
    except HubbubError as error:
        found.complain("coordinator", str(error), "start it, or correct --url (HUBBUB_URL)")
        found.skip("clock", "the coordinator, whose clock counts, does not answer")


def _find_own_address(patient: Patient) -> str | None:
    """Where a coordinator's own settings say that it answers."""
    if patient.role is not Role.COORDINATOR or not patient.settings.get("folder"):
        return None
    host, port = patient.settings.get("host", "127.0.0.1"), patient.settings.get("port", "8750")
    if port == "0":
        return None
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104  (Somebody else's setting.)
    return f"http://{everywhere.get(host, host)}:{port}"


async def _ask_all(door: Door, found: Findings) -> None:
    async with Client(door, answer_s=ANSWER_S) as client:
        health = await client.get("/healthz")
        _compare_versions(str(health.get("version")), door, found)
        try:
            await client.get("/readyz")
        except CoordinatorFailed as error:
            found.complain("coordinator", f"it is not ready: {error}", "look at its log; it tries again by itself")
        if door.token is None:
            found.skip("coordinator", "no token, so not asked what only who has one may know: --token-file")
        else:
            _describe(await client.get("/api/v1/about"), found)
        _compare_clocks(client.ahead_s, found)
    if not door.is_encrypted and not door.is_local:
        mend = "put TLS in front of the coordinator, and write https://"
        found.warn("coordinator", "the token crosses the network in the clear", mend)


def _compare_versions(theirs: str, door: Door, found: Findings) -> None:
    if theirs == __version__:
        found.praise("coordinator", f"{door.url} answers, version {theirs}")
    else:
        what = f"{door.url} is of version {theirs}, this is {__version__}"
        found.warn("coordinator", what, "use the same version on both sides")


def _compare_clocks(ahead_s: float | None, found: Findings) -> None:
    if ahead_s is None:
        found.skip("clock", "the coordinator does not tell its time")
    elif abs(ahead_s) > SKEW_S:
        way = "behind" if ahead_s > 0 else "ahead of"
        what = f"this machine's clock is {abs(ahead_s):.0f} s {way} the coordinator's"
        found.warn("clock", what, "set both by the same time servers (NTP)")
    else:
        found.praise("clock", f"within {SKEW_S:g} s of the coordinator's")


def _describe(about: Json, found: Findings) -> None:
    right = "change" if about.get("may_change") else "read"
    found.praise("coordinator", f"takes this token, to {right}")
