"""A release: wheel and sdist, and the wheel installed as users do, with no source tree in reach."""

import json
import os
import shutil
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from hubbub import __version__
from support.program import Done, run_program
from support.thorough import only_thorough

ROOT = Path(__file__).parents[2]
EPOCH = "1700000000"
NAME = f"hubbub-{__version__}"
QUICK = ("--clients", "2", "--rounds", "1", "--local-steps", "1")
WHAT_CANNOT_BE = 2
"""The exit code that docs/running.md gives for what was asked for and cannot be."""


def load_tool() -> ModuleType:
    spec = spec_from_file_location("package", ROOT / "tools" / "package.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()


@dataclass(frozen=True, slots=True)
class Environment:
    """A fresh environment, and an empty folder from which its programs are run."""

    folder: Path
    desk: Path

    @property
    def packages(self) -> Path:
        """The folder of its packages."""
        [found] = self.folder.glob("lib/python*/site-packages")
        return found

    def run(self, program: str, *arguments: str) -> Done:
        """Run one with nothing of this process's environment, so that it finds no source tree."""
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.desk), "COLUMNS": "200"}
        return run_program(self.folder / "bin" / program, *arguments, cwd=self.desk, env=environment)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tool.build(ROOT, tmp_path_factory.mktemp("dist"), EPOCH)
    assert isinstance(built, Path)
    return built


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install hubbub`."""
    folder, desk = tmp_path_factory.mktemp("bare") / "environment", tmp_path_factory.mktemp("desk")
    tool.install(str(wheel), folder)
    return Environment(folder, desk)


@pytest.fixture(scope="module")
def whole(wheel: Path, bare: Environment, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install 'hubbub[demo]'`; what the other environment has as well is not unpacked once more."""
    folder, desk = tmp_path_factory.mktemp("whole") / "environment", tmp_path_factory.mktemp("desk")
    venv.create(folder, symlinks=True)
    for package in bare.packages.iterdir():
        if not package.name.startswith("hubbub"):
            link(package, Environment(folder, desk).packages / package.name)
    tool.install(f"{wheel}[demo]", folder)
    return Environment(folder, desk)


def link(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, copy_function=os.link)
    else:
        target.hardlink_to(source)


# What is in it ----------------------------------------------------------------------------------------------


def list_sources(*folders: str) -> set[str]:
    """The files below some folders, as paths from there."""
    return {
        path.relative_to(ROOT / folder).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def list_sdist(path: Path) -> set[str]:
    with tarfile.open(path) as archive:
        return {name.removeprefix(f"{NAME}/") for name in archive.getnames()}


def test_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())

    about = {name for name in held if name.startswith(f"{NAME}.dist-info/")}
    assert held - about == list_sources("shared", "services")
    assert f"{NAME}.dist-info/licenses/LICENSE" in about
    assert wheel.name == f"{NAME}-py3-none-any.whl"
    # What is no Python file is what gets lost.
    for name in (
        "hubbub/py.typed",
        "hubbub_coordinator/dashboard/index.html",
        "hubbub_coordinator/api/docs/docs.html",
        "hubbub_cli/starter/task.py.template",
    ):
        assert name in held


def test_sdist_holds_what_tests_and_documents_take(wheel: Path) -> None:
    held = list_sdist(wheel.with_name(f"{NAME}.tar.gz"))

    for folder in ("shared", "services", "tests", "docs", "tools", "benchmarks", "examples", "k8s"):
        assert {f"{folder}/{name}" for name in list_sources(folder)} <= held
    assert {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "constraints.txt"} <= held


def test_built_again_from_the_sdist_both_are_the_same_byte_for_byte(wheel: Path, tmp_path: Path) -> None:
    sdist = wheel.with_name(f"{NAME}.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    # What makes it an sdist, and no source tree.
    (tmp_path / NAME / "PKG-INFO").unlink()

    again = tool.build(tmp_path / NAME, tmp_path / "dist", EPOCH)

    assert digest(again) == digest(wheel)
    assert digest(again.with_name(sdist.name)) == digest(sdist)


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


# Without the extra ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo"], "task lenet needs torch, which is not installed here: pip install 'hubbub[demo]'"),
        (
            ["demo", "--task", "synthetic", "--dashboard", "--port", "0"],
            "the dashboard needs fastapi_offline, which is not installed here: pip install 'hubbub[demo]'",
        ),
        (["reproduce", "mnist"], "the report's plots need matplotlib: pip install 'hubbub[report]'"),
    ],
    ids=["demo", "dashboard", "reproduce"],
)
def test_command_that_needs_an_extra_names_it(bare: Environment, arguments: list[str], said: str) -> None:
    done = bare.run("hubbub", *arguments)

    assert done.returncode == WHAT_CANNOT_BE
    assert done.stderr == f"hubbub: {said}\n"
    assert done.stdout == ""


def test_task_of_ones_own_in_torch_names_the_extra(bare: Environment) -> None:
    begun = bare.run("hubbub", "new", "project")

    done = bare.run("hubbub", "demo", "--task", "project/task.py")

    assert (begun.returncode, done.returncode) == (0, WHAT_CANNOT_BE)
    assert done.stderr == (
        "hubbub: project/task.py needs torch, which is not installed here: pip install 'hubbub[trainer]'\n"
    )


def test_federation_without_torch_trains_a_task_without_torch(bare: Environment) -> None:
    done = bare.run("hubbub", "demo", "--task", "synthetic", *QUICK)

    assert done.returncode == 0, done.stderr
    assert "All 2 clients hold the same model" in done.stdout


# With it ----------------------------------------------------------------------------------------------------


@only_thorough
def test_demo_works_from_an_empty_folder(whole: Environment) -> None:
    done = whole.run("hubbub", "demo", "--data", "digits", *QUICK, "--json", "report.json")

    assert done.returncode == 0, done.stderr
    report = json.loads((whole.desk / "report.json").read_text(encoding="utf-8"))
    assert (report["task"], report["parameters"], len(report["rounds"])) == ("lenet", 61_706, 1)
    assert f"SHA-256 {report['model_sha256'][:16]}" in done.stdout
    where = whole.run("python", "-c", "import hubbub, hubbub_local; print(hubbub.__file__, hubbub_local.__file__)")
    assert all(Path(path).is_relative_to(whole.folder) for path in where.stdout.split())
    assert whole.run("hubbub", "--version").stdout == f"hubbub {__version__}\n"


@only_thorough
def test_sbom_lists_what_is_installed_in_the_versions_that_were_tested(whole: Environment, tmp_path: Path) -> None:
    # Checking it against CycloneDX's schema takes longer than all else, and is done with each release.
    sbom = tool.write_sbom(whole.folder, __version__, tmp_path / "sbom.json", EPOCH, validate=False)

    document = json.loads(sbom.read_text(encoding="utf-8"))
    root = document["metadata"]["component"]
    listed = {part["name"]: part["version"].partition("+")[0] for part in document["components"]}
    assert (document["bomFormat"], root["name"], root["version"]) == ("CycloneDX", "hubbub", __version__)
    assert {"torch", "aio-pika", "cryptography", "plotly", "scikit-learn"} <= listed.keys()
    assert listed.items() <= dict(read_constraints()).items()
    [roots] = [row["dependsOn"] for row in document["dependencies"] if row["ref"] == root["bom-ref"]]
    assert any(each.startswith("torch==") for each in roots)


def read_constraints() -> Iterator[tuple[str, str]]:
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, _, version = line.partition("==")
            yield name, version


def test_packaging_a_tree_with_changes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "_git", lambda *_: " M README.md\n")
    monkeypatch.setattr(sys, "argv", ["package.py", str(tmp_path / "dist")])

    with pytest.raises(SystemExit, match="not committed"):
        tool.main()

    assert not (tmp_path / "dist").exists()
