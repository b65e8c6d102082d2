"""Components are named in a config by short name or by dotted path, and tried on made-up labels before they are used.

A config of one's own is code. A file that came from elsewhere is not: whoever reads one does so within
`importing_only`, and everything that is imported by name goes through here.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pate.errors import ConfigError, DataError, NotTrusted, first_line, own_line

T = TypeVar("T")

STEPS = 2
"""Steps of training a network in an attempt: enough for every line of its loop."""

SHOWN = 5
"""Examples whose predictions are looked at."""

_LABELS_PER_CLASS, _MIN_LABELS = 6, 60
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_OURS = re.compile(r"(sklearn|pate\.(teachers|features|students|mechanisms|baselines))(\.[a-z]\w*)+\.[A-Z]\w*")
_NEVER = {"tests", "conftest", "externals"}  # parts of scikit-learn that hold no classifiers


@dataclass
class Guard:
    """What may be imported within `importing_only`, and what was refused."""

    trusted: frozenset[str]
    beside: bool = False
    """Whether files beside a config may be imported, as far as they are trusted by name."""
    refused: list[str] = field(default_factory=list)


_GUARD: ContextVar[Guard | None] = ContextVar("guard", default=None)


@contextmanager
def importing_only(trusted: Iterable[str], beside: bool = False) -> Iterator[Guard]:
    """Within it a name is imported if it is in `trusted`, or a class of this package's or scikit-learn's.

    Anything else raises `NotTrusted`. For files that came from elsewhere. With `beside`, what is trusted may be in a
    file beside the config; a run names a folder itself, which is no place to import from. Within another one nothing is
    trusted that is not trusted there.
    """
    outer, trusted = _GUARD.get(), frozenset(trusted)
    if outer is not None:
        trusted &= outer.trusted
    guard = Guard(trusted, beside and bool(trusted))
    token = _GUARD.set(guard)
    try:
        yield guard
    finally:
        _GUARD.reset(token)


def also_trust(names: Iterable[str]) -> None:
    """Within `importing_only`, trust these too: the user has named them just now."""
    guard = _GUARD.get()
    if guard is not None:
        guard.trusted |= frozenset(names)


def require_trusted(name: str, key: str) -> None:
    """Raise `NotTrusted` within `importing_only`, unless `name` is trusted; `key` is where the file names it."""
    guard = _GUARD.get()
    if guard is not None and name not in guard.trusted:
        guard.refused.append(name)
        raise untrusted_error([name], key)


def untrusted_error(names: Iterable[str], where: str) -> NotTrusted:
    """The error that says what would be imported, and how to allow it. The names come from a file of anybody's."""
    shown = [name if _DOTTED.fullmatch(name) and len(name) < 200 else repr(name[:100]) for name in sorted(names)]
    which = "it" if len(shown) == 1 else "them"
    text = f"{where}: would import {', '.join(shown)}; if you trust {which}, allow it with {{trust}}"
    return NotTrusted(text, trust=shown)


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt word.

    >>> nearest("sgima", ["sigma", "scale"])
    "did you mean 'sigma'?"
    >>> nearest("x", ["sigma", "scale"])
    "known are 'scale', 'sigma'"
    """
    known = sorted(known)
    if not known:
        return "there is none"
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean '{close[0]}'?" if close else "known are " + ", ".join(f"'{k}'" for k in known)


def chosen(names: Iterable[str], known: Mapping[str, T], what: str, argument: str) -> tuple[T, ...]:
    """What is `known` by each of `names`, in their order; ConfigError, which lists all, where one of them is not.

    >>> chosen(["b", "a", "b"], {"a": 1, "b": 2}, "the table", "rows")
    (2, 1)
    """
    wanted = tuple(dict.fromkeys(names))
    unknown = [name for name in wanted if name not in known]
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        text = (
            f"{{{argument}}}: {what} has no {' and no '.join(map(shown, unknown))}; {hint}There are {', '.join(known)}"
        )
        raise ConfigError(text if hint else text.replace("There are", "there are"), **{argument: None})
    return tuple(known[name] for name in wanted)


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


def counted(number: float) -> str:
    """How many there are, for people: a whole number from 100 on, and never one with an exponent.

    >>> counted(1234.5), counted(40.0), counted(2.345)
    ('1,234', '40', '2.35')
    """
    return f"{round(number):,}" if abs(number) >= 100 else f"{number:.3g}"


def about(number: float, digits: int = 1) -> str:
    """Roughly how many there are, in a whole number of so many digits and zeros.

    >>> about(61), about(14_372), about(14_372, 2), about(0.3)
    ('about 60', 'about 10,000', 'about 14,000', 'fewer than 1')
    """
    if number < 1:
        return "fewer than 1"
    return f"about {round(number, digits - 1 - math.floor(math.log10(number))):,.0f}"


def dotted(path: Iterable[int | str]) -> str:
    """A place in a config as people name it; parts that cannot be printed as they are come in quotes.

    >>> dotted(["teachers", 0, "weight"])
    'teachers.0.weight'
    """
    return ".".join(str(part) if str(part).isprintable() and len(str(part)) < 80 else shown(part) for part in path)


class _Beside(MetaPathFinder):
    """Finds modules in the folder of the config that is in use; what is installed goes first.

    The one thing here that is global, because `sys.modules` is: a file of the user's imports others beside it by plain
    names whenever it likes, and a pickle finds a class by the name of its module. One config is in use at a time. What
    was imported from beside another one is put away meanwhile, so modules of one name do not mix.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._found: set[str] = set()  # names of modules in the folder, not of those inside of packages
        self._put_away: dict[Path, dict[str, ModuleType]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where the module is, if it is in the folder."""
        spec = PathFinder.find_spec(name, [str(self.folder)]) if path is None and self.folder is not None else None
        self._found |= {name} if spec is not None else set()
        return spec

    def use(self, folder: Path | None) -> None:
        """Look there, and nowhere else, from now on."""
        if folder == self.folder:
            return
        if self.folder is not None:
            names = [name for name in sys.modules if name.partition(".")[0] in self._found]
            self._put_away[self.folder] = {name: sys.modules.pop(name) for name in names}
        known = {} if folder is None else self._put_away.pop(folder, {})
        sys.modules.update(known)
        self.folder, self._found = folder, {name for name in known if "." not in name}


_BESIDE = _Beside()
sys.meta_path.append(_BESIDE)


def make_importable(folder: Path) -> None:
    """Let dotted paths name classes in files of the folder of a config, which is in use from now on.

    `Path()` names no folder: then the one in use stays, or the working directory is taken where none is. Within
    `importing_only` nothing changes, unless files there are trusted too: one could stand in for a package that is
    not installed.
    """
    for place in import_folders(folder):
        _BESIDE.use(Path(place))


def import_folders(folder: Path) -> tuple[str, ...]:
    """What a process that works for this one makes importable of the folder of a config: it knows of no guard."""
    guard = _GUARD.get()
    place = _BESIDE.folder or folder if folder == Path() else folder
    return () if guard is not None and not guard.beside else (str(place.resolve()),)


def config_folder() -> Path | None:
    """The folder of the config that is in use; None before any is."""
    return _BESIDE.folder


def found_file(name: str) -> Path | None:
    """A file that a config names, beside the config or else in the working directory; None if it is in neither."""
    places = [Path(name)] if _BESIDE.folder is None else [_BESIDE.folder / name, Path(name)]
    return next((place.resolve() for place in places if place.is_file()), None)


def import_dotted(path: str, key: str) -> object:
    """The object that a dotted path like `sklearn.svm.SVC` names; `key` is where the config says so.

    It may be of a class, like `my.Net.from_name`.
    """
    module, _, attribute = path.rpartition(".")
    named = f"{key} = {shown(path)}"
    if not module:
        raise ConfigError(f"{named}: neither a known short name nor a dotted path like 'sklearn.svm.SVC'")
    if not _DOTTED.fullmatch(path):
        raise ConfigError(f"{named}: cannot import that; it is no dotted path like 'sklearn.svm.SVC'")
    if not _may_be_ours(path):
        require_trusted(path, key)
    try:
        found = getattr(_module_or_class(module), attribute)
    except (Exception, SystemExit) as error:  # a user's own file may be wrong in any way
        if isinstance(error, AttributeError) and module in sys.modules:
            known = [name for name in dir(sys.modules[module]) if not name.startswith("_")]
            close = difflib.get_close_matches(attribute, known, n=3)
            close.sort(key=lambda name: name.endswith("Regressor") and not attribute.endswith("Regressor"))
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ConfigError(f"{named}: module {module} has no {attribute}{hint}") from None
        if isinstance(error, AttributeError) and error.name == attribute and isinstance(error.obj, type):
            raise ConfigError(f"{named}: class {module} has no {attribute}") from None
        place = own_line(error)
        problem = f"{f'{place}: ' if place else ''}{type(error).__name__}: {error}"
        raise ConfigError(f"{named}: cannot import {shown(module)}: {problem}") from None
    if not _is_ours(found):
        require_trusted(path, key)
    return found


def _module_or_class(path: str) -> object:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        parent, _, name = path.rpartition(".")
        found = getattr(sys.modules.get(parent), name, None) if error.name == path else None
        if not isinstance(found, type):
            raise
        return found


def dotted_names(value: Any) -> set[str]:
    """Every dotted path in a part of a config: what its owner trusts.

    >>> sorted(dotted_names({"estimator": "my.Net", "params": {"C": 1, "steps": [["svc", {"name": "a.svm.SVC"}]]}}))
    ['a.svm.SVC', 'my.Net']
    """
    if isinstance(value, str):
        return {value} if _DOTTED.fullmatch(value) else set()
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return set()
    return set().union(*(dotted_names(item) for item in value))


def _may_be_ours(path: str) -> bool:
    """Whether importing the module that `path` names runs nobody else's code."""
    return _OURS.fullmatch(path) is not None and not _NEVER & set(path.split("."))


def _is_ours(found: Any) -> bool:
    """A class of this package, or one of scikit-learn's with parameters: not something that they happen to import."""
    home = str(getattr(found, "__module__", ""))
    own = home.startswith("pate.") or (home.startswith("sklearn.") and hasattr(found, "get_params"))
    return isinstance(found, type) and own


def check_names(content: Any, where: str) -> None:
    """Raise `NotTrusted` within `importing_only` where a part of a config names what is not trusted.

    For parts that other processes build: those know of no guard.
    """
    guard = _GUARD.get()
    if guard is None:
        return
    named = dotted_names(content) | ({"joblib.Memory"} if _keeps_pickles(content) else set())
    refused = {name for name in named - guard.trusted if not _may_be_ours(name)}
    if refused:
        raise untrusted_error(refused, where)
    for name in named - guard.trusted:
        import_dotted(name, where)


def _keeps_pickles(content: Any) -> bool:
    """Whether a `memory` is named anywhere: scikit-learn reads pickles from there, which run code."""
    if isinstance(content, dict):
        return content.get("memory") is not None or any(map(_keeps_pickles, content.values()))
    return isinstance(content, (list, tuple)) and any(map(_keeps_pickles, content))


def short_names(package: str) -> list[str]:
    """The modules of a component folder."""
    folder = importlib.import_module(package)
    return [module.name for module in pkgutil.iter_modules(folder.__path__) if not module.name.startswith("_")]


@dataclass(frozen=True)
class Registry:
    """One kind of component, which configs name by short name or by dotted path: a new one is a new file.

    Parameters
    ----------
    package : str
        The folder of those that come with this package. A short name is that of a file or folder (`-` counts
        as `_`), and means its first class derived from `base`; classes with a `name` of their own are known by that.
    what : str
        How an error calls it, such as "teacher".
    base : type
        What classes of the package are derived from.
    derived : bool, default=False
        Whether a class that is named by a dotted path has to be derived from `base` too; else it has to be callable.
    """

    package: str
    what: str
    base: type
    derived: bool = False

    def classes(self) -> dict[str, Any]:
        """All that come with this package, by short name. Every file is imported."""
        return {name: cls for file in short_names(self.package) for name, cls in self._in_file(file).items()}

    def find(self, name: Any, key: str) -> Any:
        """The class, or what a dotted path names instead; `key` is where the config says so."""
        if isinstance(name, str) and "." in name:
            found = import_dotted(name, key)
            if self.derived and not (isinstance(found, type) and issubclass(found, self.base)):
                home = f"{self.base.__module__}.{self.base.__name__}"
                raise ConfigError(f"{key} = {shown(name)}: not a {self.base.__name__}; derive it from {home}")
            if not callable(found):
                raise ConfigError(f"{key} = {shown(name)}: not a class")
            return found
        short = str(name).replace("-", "_")
        known = self._in_file(short) if short in short_names(self.package) else {}
        known = known if short in known else self.classes()
        if short not in known:
            raise ConfigError(f"{key} = {shown(name)}: no such {self.what}; {nearest(str(name), known)}")
        return known[short]

    def _in_file(self, file: str) -> dict[str, Any]:
        package = self.package
        module = importlib.import_module(f"{package}.{file}")
        own = [
            cls
            for _, cls in inspect.getmembers(module, inspect.isclass)
            if cls.__module__ == module.__name__ != self.base.__module__ and issubclass(cls, self.base)
            if not cls.__name__.startswith("_") and not inspect.isabstract(cls)
        ]
        named = {vars(cls)["name"]: cls for cls in own if "name" in vars(cls)}
        return named or dict(zip([file], own, strict=False))


class AttemptFailed(Exception):
    """What was tried does not work; the text says how."""


@contextmanager
def attempt(what: str, how: str) -> Iterator[None]:
    """Turn any error into one line; a ConfigError or DataError, which says what to do, passes as it is."""
    try:
        yield
    except (ConfigError, DataError):
        raise
    except Exception as error:  # somebody else's class may fail in any way
        place = own_line(error)
        raise AttemptFailed(
            f"{what}: cannot be {how}, as tried on public examples with made-up labels before anything was charged: "
            f"{f'{place}: ' if place else ''}{type(error).__name__}: {first_line(error)}"
        ) from None


@contextmanager
def as_config_error() -> Iterator[None]:
    """Raise a failed attempt as a ConfigError."""
    try:
        yield
    except AttemptFailed as error:
        raise ConfigError(str(error)) from None


def few_labels(n_classes: int) -> int:
    """How many labels an attempt begins with."""
    return max(_MIN_LABELS, _LABELS_PER_CLASS * n_classes)


def dummy_labels(size: int, n_classes: int, may_decline: bool = False) -> NDArray[np.int64]:
    """Every class in turn, and ⊥ (-1) at the end where the mechanism may decline to answer."""
    labels = np.arange(size) % n_classes
    if may_decline and size > 2 * n_classes:
        labels[-1] = -1
    return labels


def shorten_training(estimator: Any) -> Any:
    """The estimator, set to a few steps of training where it counts its steps."""
    from pate.students.supervised import Supervised

    if not hasattr(estimator, "get_params"):
        return estimator
    counted = [
        name
        for name, value in estimator.get_params().items()
        if name.split("__")[-1] == "steps" and isinstance(value, int) and value > STEPS
    ]
    estimator.set_params(**dict.fromkeys(counted, STEPS))
    if isinstance(estimator, Supervised) and isinstance(getattr(estimator.build(), "steps", None), int):
        estimator.set_params(params={**(estimator.params or {}), "steps": STEPS})
    return estimator
