"""The Dockerfile and what goes into images, as far as it can be checked without building them."""

import re
from pathlib import Path

import pytest

from support.dockerfile import read_stages
from support.program import Done, run_python
from support.service_settings import SETTINGS

ROOT = Path(__file__).parents[2]


STAGES = read_stages()


def lines_of(stage: str, word: str) -> list[str]:
    return [rest for each, rest in STAGES[stage] if each == word]


@pytest.mark.parametrize("service", SETTINGS)
def test_an_image_starts_its_service_with_settings_that_it_has_and_asks_how_it_is_where_it_answers(
    service: str,
) -> None:
    prefix = f"HUBBUB_{service.upper()}_"
    given = {
        name: value
        for line in lines_of(service, "ENV")
        for name, _, value in (pair.partition("=") for pair in line.split())
    }
    (check,), (exposed,) = lines_of(service, "HEALTHCHECK"), lines_of(service, "EXPOSE")

    assert {name.removeprefix(prefix).lower() for name in given} <= SETTINGS[service].model_fields.keys()
    assert [value for name, value in given.items() if name.endswith("PORT")] == [exposed]
    assert check.endswith(f'CMD ["python", "-m", "hubbub.runtime.probe", "http://127.0.0.1:{exposed}/healthz"]')
    assert lines_of(service, "FROM") == [f"service AS {service}"]
    assert lines_of(service, "ENTRYPOINT") == [f'["python", "-m", "hubbub_{service}"]']
    assert (lines_of("service", "USER") + lines_of(service, "USER"))[-1] == "10001:10001"


def ask_for_requirements(*arguments: str) -> Done:
    return run_python("tools/containers/requirements.py", "pyproject.toml", *arguments, cwd=ROOT)


def names_in(lines: str) -> set[str]:
    return {re.split(r"[\[<>=~!;]", line)[0].lower().replace("_", "-") for line in lines.splitlines()}


def commands_for_requirements() -> dict[str, list[str]]:
    (line,) = lines_of("requirements", "RUN")
    return {
        file: arguments.split()
        for arguments, file in re.findall(r"requirements\.py pyproject\.toml([^>]*)> (\w+)\.txt", line)
    }


@pytest.mark.parametrize("service", SETTINGS)
def test_an_image_holds_what_its_service_needs_and_all_of_it_pinned(service: str) -> None:
    found = names_in(ask_for_requirements(*commands_for_requirements()[service]).stdout)
    pinned = names_in((ROOT / "constraints.txt").read_text(encoding="utf-8"))

    heavy = {"torch", "scikit-learn", "pillow", "plotly", "fastapi-offline", "psycopg", "pytest"}
    assert (
        found & heavy
        == {
            "coordinator": {"plotly", "fastapi-offline", "psycopg"},
            "aggregator": set(),
            # torch is installed before, from where the build is told.
            "trainer": {"scikit-learn", "pillow"},
        }[service]
    )
    assert {"aio-pika", "cryptography", "numpy"} <= found
    assert found <= pinned


def test_the_trainers_torch_is_the_one_that_the_package_names() -> None:
    (default,) = [line for line in lines_of("trainer-packages", "ARG") if line.startswith("TORCH_REQUIREMENT=")]
    named = set(ask_for_requirements("--extra", "trainer").stdout.split())

    assert default.removeprefix("TORCH_REQUIREMENT=") in named


def test_an_extra_that_is_not_there_is_told_with_those_that_are() -> None:
    ended = ask_for_requirements("--extra", "dashbord")

    assert ended.returncode == 2
    assert "no such extra: dashbord; there are dashboard, demo, " in ended.stderr
