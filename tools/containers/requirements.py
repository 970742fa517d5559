"""Print the package's requirements with some of its extras, for an image layer that changes seldom.

python requirements.py pyproject.toml --extra demo --without dashboard
"""

import argparse
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

Extras = Mapping[str, Sequence[str]]


def main() -> None:
    """Print one requirement per line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a pyproject.toml")
    parser.add_argument("--extra", action="append", default=[], help="an extra to go with it; repeatable")
    parser.add_argument(
        "--without", action="append", default=[], help="an extra to leave out of others; repeatable"
    )
    wanted = parser.parse_args()
    project = tomllib.loads(wanted.file.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    if unknown := sorted({*wanted.extra, *wanted.without} - extras.keys()):
        parser.error(f"no such extra: {', '.join(unknown)}; there are {', '.join(sorted(extras))}")
    found = [line for extra in wanted.extra for line in unfold(project["name"], extras, extra, wanted.without)]
    print("\n".join(sorted({*project["dependencies"], *found})))


def unfold(name: str, extras: Extras, extra: str, without: Sequence[str]) -> Iterator[str]:
    """Yield the requirements of an extra, and of the extras that it names, except those in `without`."""
    for line in extras[extra]:
        if own := re.fullmatch(rf"{re.escape(name)}\[([\w, -]+)\]", line):
            for inner in own[1].replace(" ", "").split(","):
                if inner not in without:
                    yield from unfold(name, extras, inner, without)
        else:
            yield line


if __name__ == "__main__":
    main()
