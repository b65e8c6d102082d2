"""Dependencies point one way, and nothing loads ray or torch before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np
import pytest

import pate
from pate.ledger import SharedBudget, SharedLedger

_LIGHT = [
    "pate",
    "pate.noise.integer",
    "pate.mechanisms",
    "pate.accounting",
    "pate.accounting.composition",
    "pate.accounting.exact",
    "pate.planning.costs",
    "pate.planning.plan",
    "pate.data.private",
    "pate.data.public",
    "pate.voters",
    "pate.voters.base",
    "pate.boundary._aggregator",
    "pate.accounting.sanitise",
    "pate.audit.confidence_bounds",
    "pate.audit.mechanism",
    "pate.data._formats",
    "pate.ledger",
    "pate.data.partition",
    "pate.config",
    "pate.cluster._checks",
    "pate.cli",
]

_BELOW = {
    "noise": set(),
    "accounting": {"noise"},
    "mechanisms": {"noise", "accounting"},
    "ledger": {"accounting", "storage"},
}
"""What the folders that count privacy may import, in functions and for types too, besides errors and components."""

_PUBLIC_SIDE = ["students", "features", "networks", "report", "planning", "cli/_predict.py"]
"""Folders and files that work on public data and on what was released."""

ROOT = Path(pate.__file__).parent


@pytest.mark.parametrize("module", _LIGHT)
def test_imports_neither_ray_nor_torch(module: str) -> None:
    code = f"import {module}, sys; print(sorted({{'ray', 'torch', 'sklearn'}} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.strip() == "[]"


_HEAVY = {
    "dp_accounting",
    "matplotlib",
    "pandas",
    "pyarrow",
    "ray",
    "scipy.optimize",
    "scipy.signal",
    "scipy.stats",
    "sklearn",
    "torch",
}
"""What takes from a third of a second to many seconds to import."""


@pytest.mark.parametrize(
    "command",
    [
        "account votes.npy --delta 1e-5 --mechanism lnmax --scale 20",
        "account votes.npy --delta 1e-5 --mechanism confident-gnmax --threshold 20 --sigma1 15 --sigma2 4",
        "plan --mechanism mstab --epsilon 1 --query-delta 1e-9",
        "ledger show shared",
    ],
)
def test_what_trains_nothing_imports_nothing_heavy(command: str, tmp_path: Path) -> None:
    pate_cli = [sys.executable, "-X", "importtime", "-m", "pate.cli"]
    np.save(tmp_path / "votes.npy", [[30, 5, 1]])
    SharedLedger.create(tmp_path / "shared", SharedBudget(order=8.0, epsilon=3.0, delta=1e-5))
    shown = subprocess.run([*pate_cli, *command.split()], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0, [line for line in shown.stderr.splitlines() if not line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}
    assert "numpy" in imported
    assert not imported & _HEAVY


def imports(tree: ast.AST, always: bool) -> Iterator[str]:
    """Modules of this package that a file imports; those that are imported on loading it only, if not `always`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "pate":
            yield from [node.module] if node.module != "pate" else [f"pate.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("pate."))
        elif always or not (_for_types(node) or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))):
            yield from imports(node, always)


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def graph(always: bool) -> dict[str, set[str]]:
    """Which folder, or file of the top level, imports which."""
    found: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if own != "__init__":  # which imports on demand
            others = {module.split(".")[1] for module in imports(ast.parse(path.read_text()), always)}
            found.setdefault(own, set()).update(others - {own, "__version__"})
    return found


def test_the_folders_have_no_cycle() -> None:
    try:
        TopologicalSorter(graph(always=False)).prepare()
    except CycleError as error:
        pytest.fail(f"these import each other: {' -> '.join(error.args[1])}")


def _defines(module: str) -> set[str] | None:
    """What can be imported from a module of this package: submodules and names, at any depth but of functions."""
    path = ROOT.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.exists():
        return None
    names = {one.stem for one in path.iterdir()} if path.is_dir() else set()
    if module == "pate":  # which imports on demand
        names |= set(pate.__all__) | {"__version__"}
    pending: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
                names.add(node.name)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                names |= {(one.asname or one.name).partition(".")[0] for one in node.names}
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            else:
                pending.append(node)
    return names


def missing_imports(text: str, known: Callable[[str], set[str] | None]) -> list[str]:
    """Modules of this package that a text imports and that are not there, and names that they do not define."""
    missing = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            missing += [one.name for one in node.names if f"{one.name}.".startswith("pate.") and not known(one.name)]
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("pate."):
            defined = known(str(node.module)) or set()
            missing += [f"{node.module}.{one.name}" for one in node.names if one.name not in defined]
    return missing


def test_whatever_is_imported_is_there_in_functions_too() -> None:
    """A function's own import is looked at by nobody before it is called."""
    known = cache(_defines)
    missing = {str(path): missing_imports(path.read_text(encoding="utf-8"), known) for path in ROOT.rglob("*.py")}
    assert not {path: names for path, names in missing.items() if names}
    for line in ("from pate.nowhere import a", "from pate.ledger import no_such_name", "import pate.ledger.nowhere"):
        assert missing_imports(f"def f():\n    {line}", known), line
    assert not missing_imports("def f():\n    from pate.ledger import _chain, Ledger\n    import numpy", known)


@pytest.mark.parametrize("folder", _BELOW)
def test_what_counts_privacy_knows_nothing_above_it(folder: str) -> None:
    assert graph(always=True)[folder] <= _BELOW[folder] | {"errors", "components"}


def test_planning_stands_above_mechanisms_and_accounting() -> None:
    importers = {name for name, others in graph(always=True).items() if "planning" in others}
    assert not importers & {"noise", "accounting", "mechanisms", "ledger", "data", "config"}


@pytest.mark.parametrize("place", _PUBLIC_SIDE)
def test_the_public_side_never_sees_private_data(place: str) -> None:
    """Neither on loading nor in a function, and not for types either."""
    paths = [ROOT / place] if place.endswith(".py") else list((ROOT / place).rglob("*.py"))
    assert paths
    for path in paths:
        named = {
            name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) for name in _imported_names(node)
        }
        assert not {name for name in named if f"{name}.".startswith("pate.data.private.")}, path


def test_an_import_of_private_data_is_noticed_in_any_form() -> None:
    for line in (
        "from pate.data.private import Records",
        "from pate.data import private",
        "import pate.data.private",
        "def f():\n    from pate.data.private import Records",
    ):
        found = {name for node in ast.walk(ast.parse(line)) for name in _imported_names(node)}
        assert "pate.data.private" in found, line


def _imported_names(node: ast.AST) -> Iterator[str]:
    """Modules that a statement imports, and what it imports from them, which may be modules too."""
    if isinstance(node, ast.Import):
        yield from (name.name for name in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{name.name}" for name in node.names)


def test_nobody_asks_which_mechanism_it_has() -> None:
    """What differs between mechanisms is asked of them, so that a new one needs no edit elsewhere."""
    from pate.mechanisms import mechanism_classes

    known = {word for cls in mechanism_classes() for word in (cls.__name__, cls.name)}
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] != "mechanisms":
            tests = [node for node in ast.walk(ast.parse(path.read_text())) if _decides(node)]
            assert not known & {word for test in tests for word in _words(test)}, path


def test_nobody_asks_which_kind_of_voters_it_has() -> None:
    """What differs between kinds is asked of them, so that a new one is a new folder and no edit elsewhere."""
    from pate.voters import kind_names, kind_of

    names = set(kind_names())
    classes = {cls.__name__ for name in names for cls in (kind_of(name), kind_of(name).config_class)}
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] == "voters":
            continue
        for test in filter(_decides, ast.walk(ast.parse(path.read_text()))):
            texts = {node.value for node in ast.walk(test) if isinstance(node, ast.Constant)}
            assert not names & texts, (path, test.lineno)
            assert not classes & set(_words(test)), (path, test.lineno)


def _decides(node: ast.AST) -> bool:
    called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    return isinstance(node, (ast.Compare, ast.Match)) or called in ("isinstance", "issubclass")


def _words(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_public_names_resolve() -> None:
    for name in pate.__all__:
        assert getattr(pate, name) is not None
    with pytest.raises(AttributeError):
        _ = pate.no_such_name
