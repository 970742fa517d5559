"""Rules of who may import whom, who may catch everything, and what importing costs, read with `ast`."""

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from support.program import run_python

ROOT = Path(__file__).parent.parent
SOURCE_ROOTS = (ROOT / "shared", ROOT / "services")
STDLIB = frozenset(sys.stdlib_module_names) | {"__future__"}


@dataclass(frozen=True)
class Module:
    name: str
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"))

    def __str__(self) -> str:
        return self.name


def find_modules() -> tuple[Module, ...]:
    return tuple(
        Module(".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"), path)
        for root in SOURCE_ROOTS
        for path in sorted(root.rglob("*.py"))
    )


MODULES = find_modules()
NAMES = frozenset(module.name for module in MODULES)
SERVICES = frozenset(module.name for module in MODULES if module.path.parent.parent == ROOT / "services") & {
    name for name in NAMES if "." not in name
}


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def imports_of(module: str, tree: ast.Module, known: frozenset[str] = NAMES) -> Iterator[str]:
    """Every module that is imported, also inside functions; of a name from a package, the module if it is one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} line {node.lineno}: imports are absolute here"
            assert node.module
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


def modules_in(*packages: str) -> list[Module]:
    found = [module for module in MODULES if any(is_in(module.name, package) for package in packages)]
    assert found, f"there is nothing in {packages}"
    return found


def find_imports(modules: Iterable[Module], is_wrong: Callable[[str], bool]) -> list[tuple[str, str]]:
    """Every module with what it imports of which it may not."""
    return sorted(
        (module.name, name)
        for module in modules
        for name in set(imports_of(module.name, module.tree))
        if is_wrong(name)
    )


def is_in_any(packages: Iterable[str], name: str) -> bool:
    return any(is_in(name, each) for each in packages)


IMPURE = frozenset({"asyncio", "logging", "os", "pathlib", "random", "secrets", "socket", "sqlite3", "time"})


LAYERS = {
    "hubbub.errors": "",
    "hubbub.ids": "",
    "hubbub.disk": "",
    "hubbub.run_options": "hubbub.ids",
    "hubbub.rest": "pydantic",
    "hubbub.protocol": "numpy hubbub.errors hubbub.ids hubbub.protocol",
    "hubbub.parameters": "hubbub.errors hubbub.ids hubbub.protocol",
    "hubbub.secure_sum": "numpy hubbub.errors hubbub.protocol hubbub.crypto",
    "hubbub.machine": "hubbub.errors hubbub.ids hubbub.machine",
    "hubbub.strategies": "numpy hubbub.errors hubbub.ids hubbub.parameters hubbub.protocol hubbub.strategies",
    "hubbub.messages": (
        "msgspec pydantic hubbub.errors hubbub.ids hubbub.parameters hubbub.protocol hubbub.messages"
    ),
    "hubbub.crypto": "numpy cryptography hubbub.errors hubbub.ids hubbub.crypto",
    "hubbub.transport": "aio_pika aiormq python_socks yarl hubbub.errors hubbub.ids hubbub.transport",
    "hubbub.trust": "pydantic hubbub.errors hubbub.ids hubbub.disk hubbub.crypto hubbub.messages hubbub.trust",
    "hubbub.store": "pydantic psycopg hubbub.errors hubbub.ids hubbub.disk hubbub.machine hubbub.store",
    "hubbub.runtime": "pydantic pydantic_settings prometheus_client starlette uvicorn httptools hubbub.errors"
    " hubbub.ids hubbub.disk hubbub.machine hubbub.messages hubbub.store hubbub.transport hubbub.trust"
    " hubbub.runtime",
    "hubbub.frame_costs": "hubbub.ids hubbub.parameters hubbub.crypto hubbub.messages hubbub.strategies",
    "hubbub.run_request": "pydantic hubbub.errors hubbub.messages hubbub.run_options hubbub.strategies",
    "hubbub.policy": "pydantic hubbub.errors hubbub.ids hubbub.messages hubbub.runtime hubbub.strategies"
    " hubbub.trust",
}
"""Packages of the library, and all that each may import besides the standard library."""
PURE = {
    *("hubbub.errors", "hubbub.ids", "hubbub.run_options", "hubbub.rest", "hubbub.protocol", "hubbub.parameters"),
    *("hubbub.secure_sum", "hubbub.machine", "hubbub.strategies", "hubbub.messages"),
}
"""Those that may not import all of the standard library either."""


def is_stranger(package: str, name: str) -> bool:
    """Whether a package may not import a name: it is not allowed, or of the standard library and impure."""
    if package in PURE and is_in_any(IMPURE, name):
        return True
    # The library's root holds its version and no more.
    return name != "hubbub" and not is_in_any({*STDLIB, *LAYERS[package].split()}, name)


def test_a_layer_imports_only_what_is_below_it() -> None:
    for package in LAYERS:
        assert find_imports(modules_in(package), partial(is_stranger, package)) == []


def test_every_module_of_the_library_is_in_a_layer() -> None:
    covered = {module.name for module in modules_in(*LAYERS)}

    assert {module.name for module in modules_in("hubbub")} - covered == {"hubbub"}
    assert LAYERS.keys() > PURE


SEES_ALL = frozenset({"hubbub_local", "hubbub_cli"})


def test_the_library_imports_no_service_and_a_service_no_other() -> None:
    for package in {"hubbub"} | SERVICES - SEES_ALL:
        assert find_imports(modules_in(package), partial(is_in_any, SERVICES - {package})) == []


OWNERS = {
    "aio_pika": ("hubbub.transport.rabbitmq",),
    "aiormq": ("hubbub.transport.rabbitmq",),
    "python_socks": ("hubbub.transport.proxy",),
    "cryptography": ("hubbub.crypto",),
    "torch": ("hubbub_trainer.learning",),
    "torchvision": ("hubbub_trainer.learning",),
    "sklearn": ("hubbub_trainer.learning",),
    "PIL": ("hubbub_trainer.learning.cifar10",),
    "psycopg": ("hubbub.store.postgres",),
    "sqlite3": ("hubbub.store", "hubbub_aggregator.journal", "hubbub_trainer.ledger"),
    "fastapi": ("hubbub_coordinator.api",),
}


def test_a_library_is_imported_only_where_it_belongs() -> None:
    for library, owners in OWNERS.items():
        elsewhere = [module for module in MODULES if not is_in_any(owners, module.name)]
        assert find_imports(elsewhere, partial(is_in_any, [library])) == []


PHASES = [module for module in MODULES if ".phases" in module.name]
NOT_FOR_PHASES = IMPURE | {
    *("datetime", "threading", "concurrent", "subprocess", "uuid", "numpy.random"),
    *("hubbub.transport", "hubbub.runtime", "hubbub.crypto", "hubbub.trust"),
}


SHELLS = (
    *("service", "__main__", "journal", "api", "intake", "workspace", "run_context", "run_secrets"),
    *("saved_model", "snapshots", "round_jobs", "task_runner", "phase_jobs"),
)


def test_every_service_has_machines_which_are_pure_and_know_nothing_of_their_shell() -> None:
    assert {module.name.split(".")[0] for module in PHASES} == SERVICES - SEES_ALL
    assert find_imports(PHASES, partial(is_in_any, NOT_FOR_PHASES)) == []
    shells = {f"{service}.{shell}" for service in SERVICES - SEES_ALL for shell in SHELLS}
    assert find_imports(PHASES, shells.__contains__) == []


# Who may catch everything, and why.
CATCHES_ALL = {
    "hubbub.runtime.runner": "a poison message never stops a service",
    "hubbub.runtime.effects": "neither an effect that cannot be done nor a failed job stops its machine",
    "hubbub_trainer.learning.registry": "importing a user's code may raise anything, which is said in one line",
    "hubbub_trainer.learning.own_code": "a user's own code may raise anything, and it stays in the log",
    "hubbub_trainer.task_runner": "whatever the owner's task raises, nobody else is told",
    "hubbub_trainer.tracking": "whatever a tracker does, the run goes on",
    "hubbub_trainer.flower.driver": "what a Flower client raises may show its data, and only its class goes on",
    "hubbub.transport.subscription": "a handler that raises anything has said RETRY, and the subscription goes on",
}


def broad_handlers(tree: ast.Module) -> list[int]:
    """Lines that stop Exception, BaseException or everything; to clean up and raise again is not to stop it."""
    broad = {"Exception", "BaseException"}

    def names(node: ast.expr | None) -> set[str]:
        return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} if node else set(broad)

    def raises_again(node: ast.ExceptHandler) -> bool:
        last = node.body[-1]
        return isinstance(last, ast.Raise) and last.exc is None

    handlers = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and names(node.type) & broad and not raises_again(node)
    ]
    calls = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress")
        if any(names(argument) & broad for argument in node.args)
    ]
    return sorted([*handlers, *calls])


def test_nobody_catches_everything_without_a_reason_and_those_with_one_do() -> None:
    assert {module.name for module in MODULES if broad_handlers(module.tree)} == CATCHES_ALL.keys()


def test_modules_have_names_and_docstrings_that_say_something() -> None:
    vague = {"utils", "util", "helpers", "common", "misc"}

    assert [name for name in NAMES if name.rsplit(".", 1)[-1] in vague] == []
    assert [module.name for module in MODULES if not ast.get_docstring(module.tree)] == []
    assert {str(module): found for module in MODULES if (found := find_riddles(module.tree))} == {}


IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sorted({"flwr", "torch", "torchvision", "sklearn", "PIL"} & set(sys.modules)))
"""


USES_TORCH = {"network_training", "torch_learner", "torch_task"}
"""Modules in which numbers become models; nobody else waits for torch to be imported."""


def test_importing_everything_but_the_model_itself_does_not_import_torch() -> None:
    uses_torch = {m.name for m in MODULES if any(is_in(name, "torch") for name in module_level_imports(m))}
    names = sorted(NAMES - uses_torch)

    done = run_python("-c", IMPORT_ALL, *names)

    assert done.stderr == ""
    assert done.stdout.split() == []
    assert uses_torch == {f"hubbub_trainer.learning.{name}" for name in USES_TORCH}


def module_level_imports(module: Module) -> list[str]:
    body = [node for node in module.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return list(imports_of(module.name, ast.Module(body=list(body), type_ignores=[])))


# Words ---------------------------------------------------------------------------------------------------

RIDDLES = frozenset({"What", "Who", "How", "Where", "Which"})


def find_riddles(tree: ast.Module) -> list[str]:
    """First lines of docstrings, of fields too, that ask a question instead of naming the thing."""
    places = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    bodies = [each for place in ast.walk(tree) if isinstance(place, places) for each in place.body]
    values = [
        each.value.value for each in bodies if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
    ]
    texts = [value for value in values if isinstance(value, str)]
    return [text.splitlines()[0] for text in texts if text.split(maxsplit=1)[0].rstrip(",:;") in RIDDLES]


def test_a_docstring_that_asks_is_found() -> None:
    source = '''"""How it works."""
class Box:
    """A box."""
    lid: int
    """What closes it."""
'''
    assert find_riddles(ast.parse(source)) == ["How it works.", "What closes it."]


# The tests above read code with these; that they see what they should is shown on code that breaks the rules.


def test_imports_are_found_wherever_they_hide() -> None:
    source = """
import os.path
from hubbub import errors, __version__
from hubbub.errors import PeerError
def f():
    import torch.nn as nn
    from aio_pika.abc import AbstractMessage
if True:
    import asyncio
"""

    assert set(imports_of("x", ast.parse(source))) == {
        *("os.path", "hubbub.errors", "hubbub", "torch.nn", "aio_pika.abc", "asyncio")
    }


def test_catching_everything_is_told_from_catching_one_thing_or_cleaning_up() -> None:
    broad = (
        "try: pass\nexcept Exception: pass",
        "try: pass\nexcept Exception as error: pass",
        "try: pass\nexcept (OSError, BaseException): pass",
        "try: pass\nexcept: pass",
        "try: pass\nexcept Exception: raise OSError",
        "with contextlib.suppress(Exception): pass",
    )
    narrow = (
        "try: pass\nexcept (OSError, ValueError): pass",
        "try: pass\nexcept BaseException:\n    close()\n    raise",
    )

    assert [source for source in (*broad, *narrow) if broad_handlers(ast.parse(source))] == [*broad]


def test_a_stranger_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "import numpy\nimport asyncio\nimport math\nfrom hubbub.protocolling import x\nimport pydantic\n"
    )

    found = find_imports([Module("hubbub.protocol.module", path)], partial(is_stranger, "hubbub.protocol"))

    assert [name for _, name in found] == ["asyncio", "hubbub.protocolling", "pydantic"]
