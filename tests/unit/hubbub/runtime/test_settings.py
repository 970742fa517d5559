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


def write_file(monkeypatch: pytest.MonkeyPatch, path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv(f"{PREFIX}CONFIG_FILE", str(path))


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
    set_variables(monkeypatch, WORKERS="2", LOG_LEVEL="debug")

    settings = load_settings(TestedSettings)

    assert settings.identity == Path("/keys/me.json")
    assert settings.roster == Path("/roster.json")
    assert settings.amqp_url.get_secret_value() == URL
    assert settings.folder == Path("/data")
    assert settings.workers == 2
    assert settings.log_level == "debug"


def test_settings_come_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_file(monkeypatch, tmp_path / "tested.toml", COMPLETE)

    settings = load_settings(TestedSettings)

    assert (settings.identity, settings.folder) == (Path("/keys/us.json"), Path("/elsewhere"))
    assert settings.workers == 3
    assert settings.log_level == "info"


def test_the_environment_wins_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_file(monkeypatch, tmp_path / "tested.toml", COMPLETE)
    monkeypatch.setenv(f"{PREFIX}IDENTITY", "/keys/me.json")

    settings = load_settings(TestedSettings)

    assert settings.identity == Path("/keys/me.json")
    assert settings.workers == 3


def test_an_unknown_variable_is_named_with_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, WORKRES="2")

    text = complaint()

    assert "HUBBUB_TESTED_WORKRES: no such setting" in text
    assert "HUBBUB_TESTED_WORKERS" in text


def test_an_unknown_setting_in_the_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_file(monkeypatch, tmp_path / "tested.toml", COMPLETE + "workres = 2\n")

    assert "WORKRES" in complaint()


def test_every_missing_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}IDENTITY", "/keys/me.json")

    text = complaint()

    for name in ("ROSTER", "AMQP_URL", "FOLDER"):
        assert f"HUBBUB_TESTED_{name}: Field required" in text
    assert "HUBBUB_TESTED_IDENTITY" not in text


def test_a_name_is_no_setting_because_the_identity_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, NAME="client-1")

    assert "HUBBUB_TESTED_NAME: no such setting" in complaint()


def test_files_for_tls_are_named_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch)
    without = load_settings(TestedSettings)
    set_variables(monkeypatch, AMQP_CA_FILE="/tls/ca", AMQP_CERT_FILE="/tls/cert", AMQP_KEY_FILE="/tls/key")
    given = load_settings(TestedSettings)

    assert (without.amqp_ca_file, without.amqp_cert_file, without.amqp_key_file) == (None, None, None)
    assert (given.amqp_ca_file, given.amqp_cert_file, given.amqp_key_file) == (
        Path("/tls/ca"),
        Path("/tls/cert"),
        Path("/tls/key"),
    )


@pytest.mark.parametrize("value", [None, "", "ab" * 31, "AB" * 32, "ab" * 32 + "\n", "latest"])
def test_a_service_without_a_policy_pins_the_roster_by_its_whole_digest(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    set_variables(monkeypatch, ROSTER_SHA256="ab" * 32)
    assert load_settings(PinnedSettings).roster_sha256 == "ab" * 32

    monkeypatch.delenv(f"{PREFIX}ROSTER_SHA256")
    if value is not None:
        monkeypatch.setenv(f"{PREFIX}ROSTER_SHA256", value)

    assert f"{PREFIX}ROSTER_SHA256: " in complaint(PinnedSettings)


@pytest.mark.parametrize(("name", "value"), [("WORKERS", "many"), ("LOG_LEVEL", "loud")])
def test_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    set_variables(monkeypatch, **{name: value})

    text = complaint()

    assert f"{PREFIX}{name}: " in text
    assert value not in text


def test_a_password_never_reaches_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_variables(monkeypatch, WORKERS="open-sesame")
    assert "open-sesame" not in complaint()
    monkeypatch.setenv(f"{PREFIX}WORKERS", "1")

    write_file(monkeypatch, tmp_path / "a.toml", f'amqp_url = ["{URL}"]')
    monkeypatch.delenv(f"{PREFIX}AMQP_URL")
    assert "open-sesame" not in complaint()

    write_file(monkeypatch, tmp_path / "b.toml", f"amqp_url = {URL}")
    assert "open-sesame" not in complaint()


def test_a_password_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch)
    settings = load_settings(TestedSettings)

    for text in (repr(settings), str(settings), settings.model_dump_json(), str(settings.model_dump())):
        assert "open-sesame" not in text


def test_a_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, CONFIG_FILE="/no/such/file.toml")

    assert complaint() == "the settings file /no/such/file.toml cannot be read: No such file or directory"


@pytest.mark.parametrize("content", [b"name = ", b"\xff\xfe", b"name = 'a'\nname = 'b'"])
def test_a_file_that_is_not_toml_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tested.toml"
    path.write_bytes(content)
    set_variables(monkeypatch, CONFIG_FILE=str(path))

    assert complaint().startswith(f"the settings file {path} is not TOML: ")


def test_settings_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch)
    settings = load_settings(TestedSettings)

    with pytest.raises(ValueError, match="frozen"):
        settings.workers = 5  # type: ignore[misc] # that is the point
