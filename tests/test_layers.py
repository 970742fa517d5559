"""Who may import whom, who may catch everything, and what importing costs: read from the source with `ast`."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE_ROOTS = (ROOT / "shared", ROOT / "services")
STDLIB = frozenset(sys.stdlib_module_names) | {"__future__"}


@dataclass(frozen=True)
class Module:
    name: str
    path: Path

    @property
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


def strangers(module: Module, allowed: frozenset[str], *, banned: frozenset[str] = frozenset()) -> list[str]:
    """What a module imports that is neither allowed nor of the standard library, or is banned all the same."""
    # The library's root holds its version and no more.
    imported = set(imports_of(module.name, module.tree)) - {"hubbub"}
    return sorted(
        name
        for name in imported
        if any(is_in(name, each) for each in banned)
        or not (name.split(".")[0] in STDLIB or any(is_in(name, each) for each in allowed))
    )


IMPURE = frozenset({"asyncio", "logging", "os", "pathlib", "random", "secrets", "socket", "sqlite3", "time"})


@dataclass(frozen=True)
class Layer:
    """A package, and all it may import besides the standard library; `banned` are modules of that library."""

    package: str
    allowed: frozenset[str]
    banned: frozenset[str] = frozenset()


def layer(package: str, *allowed: str, banned: frozenset[str] = frozenset()) -> Layer:
    return Layer(package, frozenset(allowed), banned)


LAYERS = (
    layer("hubbub.codes", banned=IMPURE),
    layer("hubbub.errors", "hubbub.codes", banned=IMPURE),
    layer("hubbub.ids", banned=IMPURE),
    layer("hubbub.disk"),
    layer("hubbub.protocol", "numpy", "hubbub.errors", "hubbub.protocol", banned=IMPURE),
    layer("hubbub.parameters", "hubbub.errors", "hubbub.protocol", banned=IMPURE),
    layer("hubbub.secure_sum", "numpy", "hubbub.errors", "hubbub.protocol", "hubbub.crypto", banned=IMPURE),
    layer("hubbub.machine", "hubbub.codes", "hubbub.errors", "hubbub.ids", "hubbub.machine", banned=IMPURE),
    layer(
        "hubbub.strategies",
        *("numpy", "hubbub.errors", "hubbub.parameters", "hubbub.protocol", "hubbub.strategies"),
        banned=IMPURE,
    ),
    layer(
        "hubbub.messages",
        "hubbub.codes",
        *("pydantic", "hubbub.errors", "hubbub.ids", "hubbub.parameters", "hubbub.protocol", "hubbub.messages"),
        banned=IMPURE,
    ),
    layer("hubbub.crypto", "numpy", "cryptography", "hubbub.errors", "hubbub.ids", "hubbub.crypto"),
    layer("hubbub.transport", "aio_pika", "aiormq", "yarl", "hubbub.errors", "hubbub.ids", "hubbub.transport"),
    layer(
        "hubbub.trust",
        *("pydantic", "hubbub.errors", "hubbub.ids", "hubbub.disk"),
        *("hubbub.crypto", "hubbub.messages", "hubbub.trust"),
    ),
    layer(
        "hubbub.store",
        *("pydantic", "psycopg", "hubbub.errors", "hubbub.ids", "hubbub.disk", "hubbub.machine", "hubbub.store"),
    ),
    layer(
        "hubbub.runtime",
        *("pydantic", "pydantic_settings", "prometheus_client", "starlette", "uvicorn", "httptools"),
        *("hubbub.codes", "hubbub.errors", "hubbub.ids", "hubbub.disk"),
        *(
            "hubbub.machine",
            "hubbub.messages",
            "hubbub.store",
            "hubbub.transport",
            "hubbub.trust",
            "hubbub.runtime",
        ),
    ),
    layer(
        "hubbub.policy",
        *("pydantic", "hubbub.codes", "hubbub.errors", "hubbub.ids", "hubbub.messages", "hubbub.runtime"),
        *("hubbub.strategies", "hubbub.trust"),
    ),
)


@pytest.mark.parametrize("rule", LAYERS, ids=lambda rule: rule.package)
def test_a_layer_imports_only_what_is_below_it(rule: Layer) -> None:
    for module in modules_in(rule.package):
        assert strangers(module, rule.allowed, banned=rule.banned) == [], module


def test_every_module_of_the_library_is_in_a_layer() -> None:
    covered = {module.name for rule in LAYERS for module in modules_in(rule.package)}

    assert {module.name for module in modules_in("hubbub")} - covered == {"hubbub"}


@pytest.mark.parametrize("module", modules_in("hubbub"), ids=str)
def test_the_library_imports_no_service(module: Module) -> None:
    assert [name for name in imports_of(module.name, module.tree) if name.split(".")[0] in SERVICES] == []


SEES_ALL = frozenset({"hubbub_local", "hubbub_cli"})


@pytest.mark.parametrize("service", sorted(SERVICES - SEES_ALL))
def test_a_service_imports_no_other_service(service: str) -> None:
    for module in modules_in(service):
        roots = {name.split(".")[0] for name in imports_of(module.name, module.tree)}
        assert roots & SERVICES <= {service}, module


OWNERS = {
    "aio_pika": ("hubbub.transport.rabbitmq",),
    "aiormq": ("hubbub.transport.rabbitmq",),
    "cryptography": ("hubbub.crypto",),
    "torch": ("hubbub_trainer.learning",),
    "torchvision": ("hubbub_trainer.learning",),
    "sklearn": ("hubbub_trainer.learning",),
    "PIL": ("hubbub_trainer.learning.cifar10",),
    "psycopg": ("hubbub.store.postgres",),
    "sqlite3": ("hubbub.store", "hubbub_aggregator.journal", "hubbub_trainer.ledger"),
    "fastapi": ("hubbub_coordinator.api",),
}


@pytest.mark.parametrize("library", OWNERS)
def test_a_library_is_imported_only_where_it_belongs(library: str) -> None:
    users = [m.name for m in MODULES if any(is_in(name, library) for name in imports_of(m.name, m.tree))]

    assert [name for name in users if not any(is_in(name, owner) for owner in OWNERS[library])] == []


PHASES = [module for module in MODULES if ".phases" in module.name]
NOT_FOR_PHASES = IMPURE | {
    *("datetime", "threading", "concurrent", "subprocess", "uuid", "numpy.random"),
    *("hubbub.transport", "hubbub.runtime", "hubbub.crypto", "hubbub.trust"),
}


@pytest.mark.parametrize("module", PHASES, ids=str)
def test_machines_are_pure(module: Module) -> None:
    imported = set(imports_of(module.name, module.tree))

    assert sorted(name for name in imported if any(is_in(name, each) for each in NOT_FOR_PHASES)) == []


SHELLS = (
    *("service", "__main__", "journal", "api", "intake"),
    *("workspace", "workspaces", "workbench", "handover", "drawn", "group"),
)


@pytest.mark.parametrize("module", PHASES, ids=str)
def test_machines_know_nothing_of_their_shell(module: Module) -> None:
    service = module.name.split(".")[0]
    shells = {f"{service}.{name}" for name in SHELLS}

    assert not set(imports_of(module.name, module.tree)) & shells


@pytest.mark.parametrize("service", sorted(SERVICES - SEES_ALL))
def test_every_service_has_machines(service: str) -> None:
    assert any(is_in(module.name, f"{service}.phases") for module in PHASES)


# Who may catch everything, and why.
CATCHES_ALL = {
    "hubbub.runtime.runner": "a poison message never stops a service, nor a failed job its machine",
    "hubbub_trainer.learning.finding": "importing a user's own code may raise anything, which is said in one line",
    "hubbub_trainer.learning.torch_learner": "a user's own code may raise anything, and it stays in the log",
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


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_nobody_catches_everything_without_a_reason(module: Module) -> None:
    if module.name not in CATCHES_ALL:
        assert broad_handlers(module.tree) == []


def test_those_who_may_catch_everything_do() -> None:
    assert [name for name in CATCHES_ALL if not broad_handlers(modules_in(name)[0].tree)] == []


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_modules_have_names_that_say_something(module: Module) -> None:
    assert module.name.rsplit(".", 1)[-1] not in {"utils", "util", "helpers", "common", "misc"}
    assert ast.get_docstring(module.tree), "the first line of a module says its one idea"


IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sorted({"flwr", "torch", "torchvision", "sklearn", "PIL"} & set(sys.modules)))
"""


USES_TORCH = {
    *("network_training", "lenet_training", "alexnet_training"),
    *("torch_export", "torch_learner", "torch_memory", "torch_task"),
}
"""Where numbers become models; nobody else waits for torch to be imported."""


def test_importing_everything_but_the_model_itself_does_not_import_torch() -> None:
    uses_torch = {m.name for m in MODULES if any(is_in(name, "torch") for name in module_level_imports(m))}
    names = sorted(NAMES - uses_torch)

    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *names], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.stderr == ""
    assert done.stdout.split() == []
    assert uses_torch == {f"hubbub_trainer.learning.{name}" for name in USES_TORCH}


def module_level_imports(module: Module) -> list[str]:
    body = [node for node in module.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return list(imports_of(module.name, ast.Module(body=list(body), type_ignores=[])))


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
        *("os.path", "hubbub.errors", "hubbub", "torch.nn", "aio_pika.abc", "asyncio"),
    }


@pytest.mark.parametrize(
    "source",
    [
        "try: pass\nexcept Exception: pass",
        "try: pass\nexcept Exception as error: pass",
        "try: pass\nexcept (OSError, BaseException): pass",
        "try: pass\nexcept: pass",
        "try: pass\nexcept Exception: raise OSError",
        "with contextlib.suppress(Exception): pass",
    ],
)
def test_catching_everything_is_seen(source: str) -> None:
    assert broad_handlers(ast.parse(source)) != []


@pytest.mark.parametrize(
    "source",
    ["try: pass\nexcept (OSError, ValueError): pass", "try: pass\nexcept BaseException:\n    close()\n    raise"],
)
def test_one_thing_or_a_cleanup_is_not_mistaken_for_catching_everything(source: str) -> None:
    assert broad_handlers(ast.parse(source)) == []


def test_a_stranger_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "import numpy\nimport asyncio\nimport math\nfrom hubbub.protocolling import x\nimport pydantic\n"
    )
    module = Module("hubbub.protocol.module", path)

    found = strangers(module, frozenset({"numpy", "hubbub.protocol"}), banned=IMPURE)

    assert found == ["asyncio", "hubbub.protocolling", "pydantic"]
