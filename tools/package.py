"""Build the release of the last commit: wheel, sdist, a list of all dependencies (SBOM), checksums.

`python tools/package.py [FOLDER]` writes them to dist. A second build of the same commit, with the versions in
constraints.txt, gives the same bytes. Needs the extra `package`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from hashlib import sha256
from pathlib import Path

import tomlkit

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
RUNTIME_EXTRAS = ("demo", "postgres", "report", "tensorboard", "mlflow")
"""All extras for users except `vision` and `flower`, which not every machine can install."""
CHECKSUMS = "SHA256SUMS"


def main() -> None:
    """Package the last commit."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else DIST
    if _git("status", "--porcelain"):
        sys.exit(
            "there are changes that are not committed, and a release is made of a commit: commit or stash them"
        )
    epoch = _git("show", "--no-patch", "--format=%ct", "HEAD").strip()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hubbub-package-") as work:
        source, environment = Path(work, "source"), Path(work, "environment")
        export(source)
        wheel = build(source, out, epoch)
        install(f"{wheel}[{','.join(RUNTIME_EXTRAS)}]", environment)
        name, version = wheel.name.split("-")[:2]
        sbom = write_sbom(environment, version, out / f"{name}-{version}.cdx.json", epoch)
    made = [wheel, wheel.with_name(f"{name}-{version}.tar.gz"), sbom]
    print(write_checksums(out, made), end="")


def export(folder: Path) -> None:
    """Write the last commit to a folder, without uncommitted files such as a key."""
    folder.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "archive", "HEAD"],  # noqa: S607  (Whichever git the developer uses.)
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    subprocess.run(["tar", "--extract", "--directory", str(folder)], input=archive.stdout, check=True)  # noqa: S607


def build(source: Path, out: Path, epoch: str) -> Path:
    """Build an sdist, and from it a wheel, which proves that the sdist is complete."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)],
        env={**os.environ, "SOURCE_DATE_EPOCH": epoch},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return max(out.glob("*.whl"), key=lambda path: path.stat().st_mtime_ns)


def install(requirement: str, environment: Path) -> None:
    """Install into an environment, which is created if needed, with the versions that the tests ran with."""
    if not environment.exists():
        # Without pip, which would be listed as a dependency; our own pip installs into other environments.
        venv.create(environment, symlinks=True)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install"),
            *("--quiet", "--disable-pip-version-check", "--no-compile"),
            *("--constraint", str(ROOT / "constraints.txt"), requirement),
        ],
        check=True,
    )


def write_sbom(environment: Path, version: str, path: Path, epoch: str, *, validate: bool = True) -> Path:
    """Write what is installed in an environment as CycloneDX: versions, licences, dependencies."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *(sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--short-PURLs"),
                *("--pyproject", str(_write_pyproject(Path(folder), version)), "--mc-type", "application"),
                *("--validate" if validate else "--no-validate", "--output-file", str(path), str(environment)),
            ],
            env={**os.environ, "SOURCE_DATE_EPOCH": epoch},
            check=True,
        )
    return path


def _write_pyproject(folder: Path, version: str) -> Path:
    """Write our pyproject.toml with the version in it: the build finds it elsewhere, the SBOM tool does not."""
    document = tomlkit.parse((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = document["project"]
    del project["dynamic"]
    project["version"] = version
    path = folder / "pyproject.toml"
    path.write_text(tomlkit.dumps(document), encoding="utf-8")
    return path


def write_checksums(out: Path, paths: list[Path]) -> str:
    """Write and return the checksums, as `sha256sum --check` reads them."""
    text = "".join(f"{sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths)
    (out / CHECKSUMS).write_text(text, encoding="ascii")
    return text


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
