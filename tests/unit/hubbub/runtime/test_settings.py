import os
from pathlib import Path

import pytest
from pydantic_settings import SettingsConfigDict

from hubbub.errors import ConfigurationError
from hubbub.runtime.settings import PinningSettings, ServiceSettings, load_settings

PREFIX = "HUBBUB_TESTED_"
URL = "amqp://user:open-sesame@broker:5672/"


class TestedSettings(ServiceSettings):
    __test__ = False

    model_config = SettingsConfigDict(env_prefix=PREFIX)

    workers: int = 1


class PinnedSettings(PinningSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)


def set_variables(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    needed = {"IDENTITY": "/keys/me.json", "ROSTER": "/roster.json", "AMQP_URL": URL, "FOLDER": "/data"}
    for name, value in {**needed, **values}.items():
        monkeypatch.setenv(PREFIX + name, value)


COMPLETE = f"""\
identity = "/keys/us.json"
roster = "/roster.json"
amqp_url = "{URL}"
folder = "/elsewhere"
workers = 3
"""


def complaint(model: type[ServiceSettings] = TestedSettings) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, WORKERS="2", LOG_LEVEL="debug", AMQP_CA_FILE="/tls/ca")

    settings = load_settings(TestedSettings)

    assert (settings.identity, settings.roster) == (Path("/keys/me.json"), Path("/roster.json"))
    assert (settings.amqp_url.get_secret_value(), settings.folder) == (URL, Path("/data"))
    assert (settings.workers, settings.log_level) == (2, "debug")
    assert (settings.amqp_ca_file, settings.amqp_cert_file) == (Path("/tls/ca"), None)
    for text in (repr(settings), str(settings), settings.model_dump_json(), str(settings.model_dump())):
        assert "open-sesame" not in text
    with pytest.raises(ValueError, match="frozen"):
        settings.workers = 5  # type: ignore[misc] # that is the point


def test_the_environment_wins_over_a_settings_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tested.toml").write_text(COMPLETE, encoding="utf-8")
    monkeypatch.setenv(f"{PREFIX}CONFIG_FILE", str(tmp_path / "tested.toml"))
    monkeypatch.setenv(f"{PREFIX}IDENTITY", "/keys/me.json")

    settings = load_settings(TestedSettings)

    assert (settings.identity, settings.folder) == (Path("/keys/me.json"), Path("/elsewhere"))
    assert (settings.workers, settings.log_level) == (3, "info")


@pytest.mark.parametrize("name", ["WORKRES", "NAME"])
def test_an_unknown_variable_and_every_missing_one_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"{PREFIX}IDENTITY", "/keys/me.json")
    missing = [f"HUBBUB_TESTED_{name}: Field required" for name in ("ROSTER", "AMQP_URL", "FOLDER")]
    assert complaint() == "; ".join(missing)
    set_variables(monkeypatch, **{name: "client-1"})

    text = complaint()

    assert f"HUBBUB_TESTED_{name}: no such setting" in text
    assert "HUBBUB_TESTED_WORKERS" in text


@pytest.mark.parametrize("value", [None, "", "ab" * 31, "AB" * 32, "ab" * 32 + "\n", "latest"])
def test_the_roster_is_pinned_by_its_whole_digest(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    set_variables(monkeypatch, ROSTER_SHA256="ab" * 32)
    assert load_settings(PinnedSettings).roster_sha256 == "ab" * 32

    monkeypatch.delenv(f"{PREFIX}ROSTER_SHA256")
    if value is not None:
        monkeypatch.setenv(f"{PREFIX}ROSTER_SHA256", value)

    assert f"{PREFIX}ROSTER_SHA256: " in complaint(PinnedSettings)


@pytest.mark.parametrize(("name", "value"), [("WORKERS", "open-sesame"), ("LOG_LEVEL", "loud")])
def test_a_wrong_value_is_named_and_not_shown(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    set_variables(monkeypatch, **{name: value})

    text = complaint()

    assert f"{PREFIX}{name}: " in text
    assert value not in text


NOT_TOML = "the settings file {} is not TOML: "


@pytest.mark.parametrize(
    ("content", "beginning"),
    [
        (COMPLETE.encode() + b"workres = 2\n", "HUBBUB_TESTED_WORKRES: "),
        (COMPLETE.replace(f'"{URL}"', f'["{URL}"]').encode(), "HUBBUB_TESTED_AMQP_URL: "),
        (f"amqp_url = {URL}".encode(), NOT_TOML),
        (b"name = ", NOT_TOML),
        (b"\xff\xfe", NOT_TOML),
        (b"name = 'a'\nname = 'b'", NOT_TOML),
        (None, "the settings file {} cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_no_password_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, beginning: str
) -> None:
    path = tmp_path / "tested.toml"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(f"{PREFIX}CONFIG_FILE", str(path))

    text = complaint()

    assert text.startswith(beginning.format(path))
    assert "open-sesame" not in text
