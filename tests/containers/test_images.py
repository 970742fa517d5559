"""The three images, each by itself."""

from pathlib import Path

import pytest

from hubbub import __version__
from support.containers import SERVICES, Container, docker, image_of, inspect, skip_unless_asked
from support.processes import wait_until

skip_unless_asked()

MOST_BYTES = {"coordinator": 450_000_000, "aggregator": 350_000_000}
# Imported by every service, and here never done with.
STUCK = """
import signal
print("importing", flush=True)
while True:
    signal.pause()
"""


def run_python(service: str, code: str) -> str:
    return docker(
        "run", "--rm", "--read-only", "--network", "none", "--entrypoint", "python", image_of(service), "-c", code
    )


@pytest.mark.parametrize("service", SERVICES)
def test_only_the_trainer_has_torch_and_data(service: str) -> None:
    found = run_python(
        service,
        "from importlib.util import find_spec\n"
        "print(*[name for name in ('torch', 'sklearn', 'psycopg', 'plotly') if find_spec(name)])",
    )

    assert (
        found.split()
        == {"coordinator": ["psycopg", "plotly"], "aggregator": [], "trainer": ["torch", "sklearn"]}[service]
    )


@pytest.mark.parametrize("service", SERVICES)
def test_nothing_is_left_of_building_and_testing(service: str) -> None:
    left = run_python(
        service,
        "import pathlib, shutil\n"
        "root = pathlib.Path('/opt/hubbub')\n"
        "print(*[name for name in ('gcc', 'cc', 'g++', 'make') if shutil.which(name)])\n"
        "print(*[path for path in root.rglob('tests') if path.is_dir()])\n"
        "print(*[path for name in ('pip', 'hatchling', 'pytest') for path in root.glob(f'lib/*/*/{name}')])\n"
        "print(*[path for path in ('/build', '/opt/wheels') if pathlib.Path(path).exists()])",
    )

    assert left.split() == []


@pytest.mark.parametrize("service", MOST_BYTES)
def test_an_image_without_torch_is_small(service: str) -> None:
    assert inspect(image_of(service))["Size"] < MOST_BYTES[service]


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_says_what_it_is_and_starts_the_interpreter_as_nobody_in_particular(service: str) -> None:
    config = inspect(image_of(service))["Config"]

    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["python", "-m", f"hubbub_{service}"]
    assert config["Labels"]["org.opencontainers.image.title"] == f"hubbub-{service}"
    assert config["Labels"]["org.opencontainers.image.version"] == __version__
    assert not [name for name in config["Env"] if name.startswith("PIP_")]


@pytest.mark.parametrize("service", SERVICES)
def test_the_code_in_an_image_is_compiled(service: str) -> None:
    missing = run_python(
        service,
        "import pathlib, importlib.util, hubbub\n"
        "root = pathlib.Path(hubbub.__file__).parents[1]\n"
        "print([str(path) for path in root.glob('hubbub*/**/*.py')"
        " if not pathlib.Path(importlib.util.cache_from_source(str(path))).exists()])",
    )

    assert missing == "[]\n"


@pytest.mark.parametrize("service", SERVICES)
def test_without_settings_a_service_says_in_one_line_what_it_needs(service: str) -> None:
    with Container(image_of(service)) as container:
        code, log = container.wait()

    (line,) = log.splitlines()
    assert code == 2
    assert f"HUBBUB_{service.upper()}_AMQP_URL: Field required" in line


@pytest.mark.parametrize("service", SERVICES)
def test_the_command_line_is_in_every_image(service: str) -> None:
    with Container(image_of(service), "--version", options=("--entrypoint", "hubbub")) as container:
        code, log = container.wait()

    assert (code, __version__ in log) == (0, True)


@pytest.mark.parametrize("service", SERVICES)
def test_a_first_process_that_is_still_being_imported_ends_well_when_told(service: str, tmp_path: Path) -> None:
    module = tmp_path / "pydantic_settings.py"
    module.write_text(STUCK)
    # The user in the container is another than ours.
    tmp_path.chmod(0o755)
    module.chmod(0o644)
    options = ("--volume", f"{module}:/stuck/pydantic_settings.py:ro", "--env", "PYTHONPATH=/stuck")

    with Container(image_of(service), options=options) as container:
        wait_until(lambda: container.read_log() == "importing\n", "it is being imported")
        code = container.stop()

    assert code == 0
