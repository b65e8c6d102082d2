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


def make_importable(folder: Path) -> None:
    """Let dotted paths name classes in files next to a config; what is installed goes first."""
    if str(folder.resolve()) not in sys.path:
        sys.path.append(str(folder.resolve()))


def import_dotted(path: str, key: str) -> object:
    """The object that a dotted path like `sklearn.svm.SVC` names; `key` is where the config says so."""
    module, _, attribute = path.rpartition(".")
    if not module:
        raise ConfigError(f"{key} = {path!r}: neither a known short name nor a dotted path like 'sklearn.svm.SVC'")
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # a user's own file may be wrong in any way
        raise ConfigError(f"{key} = {path!r}: cannot import {module}: {type(error).__name__}: {error}") from None
    if not hasattr(imported, attribute):
        raise ConfigError(f"{key} = {path!r}: module {module} has no {attribute}")
    return getattr(imported, attribute)


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
            raise ConfigError(f"{key} = {name!r}: not a {base.__name__}")
        return cls
    found: dict[str, type[T]] = {}
    for module_name in short_names(package):
        module = importlib.import_module(f"{package}.{module_name}")
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if issubclass(cls, base) and cls.__module__ == module.__name__ and "name" in vars(cls):
                found[vars(cls)["name"]] = cls
    if name.replace("-", "_") not in found:
        raise ConfigError(f"{key} = {name!r}: no such name; {nearest(name, found)}")
    return found[name.replace("-", "_")]
