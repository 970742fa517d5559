import os
from pathlib import Path

import pytest
from pydantic_settings import SettingsConfigDict

from hubbub.errors import ConfigurationError
from hubbub.runtime.settings import ServiceSettings, load_settings

PREFIX = "HUBBUB_TESTED_"
URL = "amqp://user:open-sesame@broker:5672/"


class TestedSettings(ServiceSettings):
    __test__ = False

    model_config = SettingsConfigDict(env_prefix=PREFIX)

    workers: int = 1


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)


def set_variables(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for name, value in {"NAME": "client-1", "AMQP_URL": URL, "FOLDER": "/data", **values}.items():
        monkeypatch.setenv(PREFIX + name, value)


def write_file(monkeypatch: pytest.MonkeyPatch, path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv(f"{PREFIX}CONFIG_FILE", str(path))


COMPLETE = f'name = "client-2"\namqp_url = "{URL}"\nfolder = "/elsewhere"\nworkers = 3\n'


def complaint() -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(TestedSettings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, WORKERS="2", LOG_LEVEL="debug")

    settings = load_settings(TestedSettings)

    assert settings.name == "client-1"
    assert settings.amqp_url.get_secret_value() == URL
    assert settings.folder == Path("/data")
    assert settings.workers == 2
    assert settings.log_level == "debug"


def test_settings_come_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_file(monkeypatch, tmp_path / "tested.toml", COMPLETE)

    settings = load_settings(TestedSettings)

    assert (settings.name, settings.folder, settings.workers) == ("client-2", Path("/elsewhere"), 3)
    assert settings.log_level == "info"


def test_the_environment_wins_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_file(monkeypatch, tmp_path / "tested.toml", COMPLETE)
    monkeypatch.setenv(f"{PREFIX}NAME", "client-1")

    settings = load_settings(TestedSettings)

    assert settings.name == "client-1"
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
    monkeypatch.setenv(f"{PREFIX}NAME", "client-1")

    text = complaint()

    assert "HUBBUB_TESTED_AMQP_URL: Field required" in text
    assert "HUBBUB_TESTED_FOLDER: Field required" in text
    assert "HUBBUB_TESTED_NAME" not in text


@pytest.mark.parametrize(
    ("name", "value"),
    [("NAME", "Client One"), ("NAME", "../client"), ("WORKERS", "many"), ("LOG_LEVEL", "loud")],
)
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
