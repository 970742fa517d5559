"""The project's tools, which are scripts in a folder of their own and no package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "tools"


def load_tool(name: str) -> ModuleType:
    """Import a tool by its name."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # A dataclass looks its module up.
    spec.loader.exec_module(module)
    return module
