"""Components are named in a config by short name or by dotted path."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pate.errors import ConfigError

T = TypeVar("T")


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt word.

    >>> nearest("sgima", ["sigma", "scale"])
    "did you mean 'sigma'?"
    >>> nearest("x", ["sigma", "scale"])
    "known are 'scale', 'sigma'"
    """
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean '{close[0]}'?" if close else "known are " + ", ".join(f"'{k}'" for k in known)


def shown(value: object, most: int = 80) -> str:
    """A value as an error quotes it: in one line, without control characters, and never a page of it.

    >>> shown("two\\nlines")
    "'two\\\\nlines'"
    """
    try:
        text = repr(value)
    except ValueError:  # Python writes out no whole number of more than 4,300 digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def dotted(path: Iterable[int | str]) -> str:
    """A place in a config as people name it; parts that cannot be printed as they are come in quotes.

    >>> dotted(["teachers", 0, "weight"])
    'teachers.0.weight'
    """
    return ".".join(str(part) if str(part).isprintable() and len(str(part)) < 80 else shown(part) for part in path)


def make_importable(folder: Path) -> None:
    """Let dotted paths name classes in files next to a config; what is installed goes first."""
    if str(folder.resolve()) not in sys.path:
        sys.path.append(str(folder.resolve()))


def import_dotted(path: str, key: str) -> object:
    """The object that a dotted path like `sklearn.svm.SVC` names; `key` is where the config says so."""
    module, _, attribute = path.rpartition(".")
    if not module:
        raise ConfigError(f"{key} = {shown(path)}: neither a known short name nor a dotted path like 'sklearn.svm.SVC'")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # a user's own file may be wrong in any way
        if isinstance(error, AttributeError) and module in sys.modules:
            raise ConfigError(f"{key} = {shown(path)}: module {module} has no {attribute}") from None
        problem = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{key} = {shown(path)}: cannot import {shown(module)}: {problem}") from None


def short_names(package: str) -> list[str]:
    """The modules of a component folder."""
    folder = importlib.import_module(package)
    return [module.name for module in pkgutil.iter_modules(folder.__path__) if not module.name.startswith("_")]


def class_in(package: str, module_name: str, base: type[T]) -> type[T] | None:
    """The first class of its own that a component's file holds."""
    module = importlib.import_module(f"{package}.{module_name}")
    for _, cls in inspect.getmembers(module, inspect.isclass):
        if cls.__module__ == module.__name__ and issubclass(cls, base):
            return cls
    return None


def resolve(name: str, package: str, base: type[T], key: str) -> type[T]:
    """The class that `name` means: a class of `package` by its short `name` attribute, or one by dotted path."""
    if "." in name:
        cls = import_dotted(name, key)
        if not (isinstance(cls, type) and issubclass(cls, base)):
            raise ConfigError(f"{key} = {shown(name)}: not a {base.__name__}")
        return cls
    found: dict[str, type[T]] = {}
    for module_name in short_names(package):
        module = importlib.import_module(f"{package}.{module_name}")
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if issubclass(cls, base) and cls.__module__ == module.__name__ and "name" in vars(cls):
                found[vars(cls)["name"]] = cls
    if name.replace("-", "_") not in found:
        raise ConfigError(f"{key} = {shown(name)}: no such name; {nearest(name, found)}")
    return found[name.replace("-", "_")]
