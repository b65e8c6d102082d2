"""What a user can name is documented by itself: each parameter with its type and what it means."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pate
from pate import voters
from pate.config import _components as components
from pate.config import _settings as config_settings
from pate.data import _settings as data_settings
from pate.mechanisms import Mechanism

_PARAMETER = re.compile(r"^(\w+(?:, \w+)*|\*\*\w+) : (\S.*)$")


def parameters_section(documented: str) -> dict[str, tuple[str, str]]:
    """Type and text of each parameter in a numpydoc section `Parameters`."""
    lines = inspect.cleandoc(documented).splitlines()
    if "Parameters" not in lines:
        return {}
    found: dict[str, tuple[str, str]] = {}
    names: list[str] = []
    for line in lines[lines.index("Parameters") + 2 :]:
        match = _PARAMETER.match(line)
        if match:
            names = [name.lstrip("*") for name in match[1].split(", ")]
            found.update((name, (match[2], "")) for name in names)
        elif line.startswith("    ") and names:
            found.update((name, (found[name][0], found[name][1] + line)) for name in names)
        elif line.startswith("---"):  # the next section
            break
        elif line.strip():
            names = []
    return found


def undocumented(named: Any) -> list[str]:
    """Parameters of a class or function without type, meaning or, where they have one, default."""
    known = parameters_section(named.__doc__ or "")
    wrong = []
    for parameter in inspect.signature(named).parameters.values():
        kind, text = known.get(parameter.name, ("", ""))
        optional = parameter.default is not parameter.empty
        if not kind or not text.strip() or (optional and not re.search(r"\b(default|optional)\b", kind)):
            wrong.append(parameter.name)
    return wrong


def constructors() -> Iterator[type]:
    """Every class with parameters that a config can name by what this package calls it."""
    for folder in ("mechanisms", "teachers", "features", "students", "baselines"):
        package = importlib.import_module(f"pate.{folder}")
        for module in [package, *(importlib.import_module(f"{package.__name__}.{m.name}") for m in _modules(package))]:
            for name, cls in inspect.getmembers(module, inspect.isclass):
                nameable = hasattr(cls, "get_params") or (issubclass(cls, Mechanism) and "name" in vars(cls))
                if cls.__module__ == module.__name__ and nameable and not name.startswith("_"):
                    yield cls


def sections() -> Iterator[type]:
    """Every section of a config, of this package."""
    for module in (config_settings, components, data_settings, *(voters.kind_of(name) for name in voters.kind_names())):
        found = {name: cls for name, cls in vars(inspect.getmodule(module) or module).items() if isinstance(cls, type)}
        yield from (cls for cls in found.values() if issubclass(cls, data_settings.Settings))


@pytest.mark.parametrize("section", dict.fromkeys(sections()), ids=lambda cls: cls.__name__)
def test_every_key_of_a_config_is_documented(section: type[data_settings.Settings]) -> None:
    known: dict[str, tuple[str, str]] = {}
    for cls in section.__mro__:
        known = parameters_section(vars(cls).get("__doc__") or "") | known
    assert set(section.model_fields) <= {name for name, (kind, text) in known.items() if kind and text.strip()}


def _modules(package: Any) -> Iterator[pkgutil.ModuleInfo]:
    return (m for m in pkgutil.iter_modules(package.__path__) if not m.ispkg and not m.name.startswith("_"))


def exports() -> Iterator[Any]:
    """Functions and classes that `import pate` gives; an exception's constructor is nobody's business."""
    for name in pate.__all__:
        found = getattr(pate, name)
        if callable(found) and not (isinstance(found, type) and issubclass(found, Exception)):
            yield found


def _name(found: Any) -> str:
    return f"{found.__module__.removeprefix('pate.')}.{found.__name__}"


@pytest.mark.parametrize("named", dict.fromkeys([*exports(), *constructors()]), ids=_name)
def test_what_a_user_can_name_documents_each_parameter(named: Any) -> None:
    assert not undocumented(named)


def test_a_parameter_that_lacks_its_type_meaning_or_default_is_noticed() -> None:
    def named(a: int, b: int, c: int = 1, d: int = 2) -> None:
        """A function.

        Parameters
        ----------
        a : int
        b
            The second.
        c : int
            The third.
        d : int, default=2
            The fourth.
        """

    assert undocumented(named) == ["a", "b", "c"]


def test_every_docstring_stands_alone() -> None:
    for path in Path(pate.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node) or ""
                assert not text.startswith("The same"), (path, getattr(node, "lineno", 1))
