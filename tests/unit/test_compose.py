"""docker-compose.yml against what it speaks of: the specification, the settings, the images, what init writes."""

import re
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from hubbub import __version__
from hubbub.messages.manifest import read_manifest
from hubbub.runtime.health import Vitals, create_app
from hubbub.runtime.settings import ServiceSettings
from hubbub_cli.federation_folder import PUBLIC, SETTINGS_FILE, list_files, name_parties
from hubbub_coordinator.api.access import OPEN_PATHS
from support.command_line import make_hubbub
from support.compose_file import (
    COMPOSE_FILE,
    ROOT,
    MissingVariable,
    Service,
    check_compose_specification,
    put_in,
    read_compose,
    read_env_file,
    read_services,
)
from support.dockerfile import DOCKERFILE, read_targets
from support.service_settings import SETTINGS

ALL = read_services(profiles=("metrics", "cluster"))
FILES = list_files(name_parties(clients=5, aggregators=2))
ONE_SHOT = ("init", "operator")
PARTIES = [service for service in ALL.values() if service.target and service.name not in ONE_SHOT]
OTHER_VARIABLES = {"HUBBUB_URL", "HUBBUB_TOKEN_FILE", "HUBBUB_CACHE"}
"""Of the `hubbub` command itself."""
SECRET_NAME = re.compile(r"PASSWORD|PASSWD|SECRET|COOKIE|CREDENTIAL|TOKEN$|KEY$")
IN_VOLUMES = ("/run/", "/etc/")
UNITS = {"s": 1, "m": 60, "h": 3600}


def model_of(service: Service) -> type[ServiceSettings]:
    assert service.target is not None
    return SETTINGS[service.target]


def settings_of(service: Service) -> dict[str, str]:
    """A party's settings in the file, by the names that the settings class has."""
    prefix = model_of(service).model_config.get("env_prefix", "")
    own = {name: value for name, value in service.environment.items() if name.startswith("HUBBUB_")}
    assert all(name.startswith(prefix) for name in own), own
    return {name.removeprefix(prefix).lower(): str(value) for name, value in own.items()}


def seconds(text: str) -> int:
    number, unit = text[:-1], text[-1]
    return int(number) * UNITS[unit]


# The specification ---------------------------------------------------------------------------------------------


def test_it_keeps_to_the_compose_specification() -> None:
    check_compose_specification(COMPOSE_FILE)


def test_variables_are_put_in_as_compose_does() -> None:
    for text, value in (
        ("${A}-$A", "1-1"),
        ("${A:-2}${B:-2}${EMPTY:-2}", "122"),
        ("${A-2}${B-2}${EMPTY-2}", "12"),
        ("$$A ${B}", "$A "),
        ("${A:?must be given}", "1"),
        ("a:${B:-b-c/d}:ro", "a:b-c/d:ro"),
    ):
        assert put_in(text, {"A": "1", "EMPTY": ""}) == value
    with pytest.raises(MissingVariable, match="EMPTY: say it"):
        put_in("${EMPTY:?say it}", {"EMPTY": ""})


def test_every_variable_is_explained_at_the_top() -> None:
    text = COMPOSE_FILE.read_text(encoding="utf-8")
    top = "\n".join(line for line in text.splitlines() if line.startswith("#"))

    asked = set(re.findall(r"\$\{(\w+)", text)) - set(read_env_file(ROOT / "compose" / "cluster.env"))
    assert {name for name in asked if name not in top} == set()


# Settings ------------------------------------------------------------------------------------------------------


def test_a_party_is_given_its_settings_and_what_they_name_is_mounted(subtests: pytest.Subtests) -> None:
    for service in PARTIES:
        with subtests.test(service.name):
            settings, fields = settings_of(service), model_of(service).model_fields
            given = {*settings, *(["roster_sha256"] if "config_file" in settings else [])}
            volumes = {mount.target: mount.source for mount in service.mounts}
            files = [PurePosixPath(value) for value in settings.values() if value.startswith(IN_VOLUMES)]
            writable = {mount.target for mount in service.mounts if not mount.read_only}

            assert given <= {*fields, "config_file"}
            assert {name for name, field in fields.items() if field.is_required()} <= given
            assert PurePosixPath(settings.get("config_file", SETTINGS_FILE)).name == SETTINGS_FILE
            assert files
            assert [file for file in files if file.name not in FILES[volumes[str(file.parent)]]] == []
            assert {settings[name] for name in ("folder", "cache_folder") if name in settings} == writable


def test_variables_are_settings_or_the_command_s_and_hold_no_secret(subtests: pytest.Subtests) -> None:
    for service in ALL.values():
        with subtests.test(service.name):
            ours = {name for name in service.environment if name.startswith("HUBBUB_")}

            assert service in PARTIES or ours <= OTHER_VARIABLES
            for name, value in service.environment.items():
                assert not SECRET_NAME.search(name.removesuffix("_FILE")) or name.endswith("_FILE"), name
                assert "@" not in str(value), f"{name} may hold a password"


def test_init_makes_what_it_has_volumes_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    init = ALL["init"]
    command = [str(tmp_path) if word == "/federation" else word for word in init.content["command"]]

    ended = make_hubbub(monkeypatch, capsys)(*command)

    assert ended.code == 0, ended
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == set(FILES)
    assert {mount.target: mount.source for mount in init.mounts} == {f"/federation/{name}": name for name in FILES}
    manifest = read_manifest((tmp_path / PUBLIC / "manifest.json").read_bytes())
    graces = {seconds(service.content["stop_grace_period"]) for service in PARTIES}
    assert min(graces) > manifest.phase_timeout_s, "a party may end what it has begun"


# Who has what --------------------------------------------------------------------------------------------------


def test_a_service_mounts_one_secret_folder_and_only_init_changes_what_is_there(subtests: pytest.Subtests) -> None:
    owner = {"prometheus": ["monitor"], "grafana": [], "broker-2": ["broker"], "broker-3": ["broker"]}
    for service in ALL.values():
        with subtests.test(service.name):
            held = [mount for mount in service.mounts if mount.source in FILES]
            secrets = [mount for mount in held if mount.source != PUBLIC]

            assert {mount.read_only for mount in held} <= {service.name != "init"}
            if service.name != "init":
                assert [mount.source for mount in secrets] == owner.get(service.name, [service.name])
                assert all(mount.target == "/run/hubbub" for mount in secrets)


def test_what_one_service_keeps_no_other_mounts() -> None:
    kept = Counter(m.source for service in ALL.values() for m in service.mounts if m.is_volume and not m.read_only)

    assert {name for name, users in kept.items() if users > 1} == set()
    assert {m.source for service in ALL.values() for m in service.mounts if m.is_volume} == set(
        read_compose()["volumes"]
    )


def test_every_service_is_confined(subtests: pytest.Subtests) -> None:
    for service in ALL.values():
        with subtests.test(service.name):
            content, ports = service.content, service.content.get("ports", [])

            assert (content["user"], content["read_only"], content["cap_drop"]) == ("10001:10001", True, ["ALL"])
            assert content["security_opt"] == ["no-new-privileges:true"]
            assert "/tmp" in service.tmpfs  # noqa: S108  (In a container.)
            assert {"mem_limit", "pids_limit", "restart"} <= set(content)
            assert not {"privileged", "cap_add", "devices", "pid", "ipc"} & set(content)
            assert content.get("network_mode", "none") == "none"
            assert all(port.startswith("127.0.0.1:") for port in ports)
            assert bool(ports) == (service.name in {"coordinator", "grafana"})


# Networks ------------------------------------------------------------------------------------------------------


def test_the_broker_is_reached_by_parties_alone_and_reaches_nobody_else() -> None:
    networks = read_compose()["networks"]
    brokers = [service for name, service in ALL.items() if name.startswith("broker")]

    assert all(list(service.networks) == ["broker"] for service in brokers)
    assert networks["broker"] == {"internal": True}
    assert {s.name for s in ALL.values() if "broker" in s.networks} == {s.name for s in [*brokers, *PARTIES]}
    assert {network for service in ALL.values() for network in service.networks} == set(networks)


def test_a_party_is_asked_how_it_is_where_it_answers(subtests: pytest.Subtests) -> None:
    for service in PARTIES:
        with subtests.test(service.name):
            given = settings_of(service)
            interpreter, *program, url = service.probe
            found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/\w+)", url)

            assert [interpreter, *program] == ["python", "-m", "hubbub.runtime.probe"]
            assert found
            assert found[1] == given.get("metrics_port", given.get("port"))
            assert found[2] in {route.path for route in create_app(Vitals()).routes if hasattr(route, "path")}
            assert found[2] in OPEN_PATHS


def test_what_lasts_is_started_again_and_what_a_service_waits_for_can_come(subtests: pytest.Subtests) -> None:
    for service in ALL.values():
        with subtests.test(service.name):
            if service.name not in ONE_SHOT:
                assert service.content["restart"] == "unless-stopped"
                assert service.probe
            for name, condition in service.depends_on.items():
                ends = condition["condition"] == "service_completed_successfully"
                assert name in ONE_SHOT if ends else ALL[name].probe
                needs_profile = set(ALL[name].profiles) - set(service.profiles)
                assert not needs_profile or condition["required"] is False


# Images --------------------------------------------------------------------------------------------------------


def test_every_image_of_ours_is_built_once_from_a_target_of_the_dockerfile() -> None:
    ours = [service for service in ALL.values() if service.target]
    built = [service for service in ours if "build" in service.content]

    assert {service.content["image"] for service in ours} == {f"hubbub-{name}:{__version__}" for name in SETTINGS}
    assert sorted(str(service.content["build"]["target"]) for service in built) == sorted(SETTINGS)
    assert all(service.content["build"]["target"] == service.target for service in built)
    assert all(service.content["pull_policy"] == "never" for service in ours if service not in built)
    assert set(SETTINGS) <= set(read_targets())


def test_the_build_is_given_arguments_that_there_are() -> None:
    known = set(re.findall(r"^ARG (\w+)", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE))
    given = [service.content["build"]["args"] for service in ALL.values() if "build" in service.content]

    assert all(set(arguments) <= known and arguments["HUBBUB_VERSION"] == __version__ for arguments in given)


def test_volumes_belong_to_the_user_of_the_services_which_the_image_starts(subtests: pytest.Subtests) -> None:
    """An empty volume takes over the owner of the folder in the image that it is mounted on."""
    recipe = DOCKERFILE.read_text(encoding="utf-8")
    for service in (each for each in ALL.values() if each.target):
        with subtests.test(service.name):
            target = read_targets()[str(service.target)]

            assert target.user == [service.content["user"]]
            for mount in service.mounts:
                name = mount.target.removeprefix("/federation/")
                assert re.search(rf"[ \t]{re.escape(name)}(\s|$)", recipe, re.MULTILINE), mount
            if service in PARTIES:
                assert target.entrypoint == ["python", "-m", f"hubbub_{service.target}"]
                assert not {"entrypoint", "command"} & set(service.content)
