"""Teacher families. A teacher is a scikit-learn style classifier: `fit(X, y) -> self`, `predict(X) -> int[n]`."""

from __future__ import annotations

import copy
import importlib
import inspect
import itertools
import json
import math
import pickle
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone

from pate.components._registry import Registry, nearest, require_trusted
from pate.errors import ConfigError
from pate.features import Features, build_features
from pate.mechanisms import UNANSWERED
from pate.storage._files import tensors_from_bytes, tensors_to_bytes

if TYPE_CHECKING:
    from pate.config import Model, TeacherFamily
    from pate.config._components import Resources

TEACHERS = Registry("pate.teachers", "teacher", BaseEstimator)


@dataclass(frozen=True)
class _Packed:
    """An object on its way to a worker of the same run."""

    content: bytes


@dataclass(frozen=True)
class Recipe:
    """How one kind of teacher is made: classifier, parameters and the public features before it; and with what.

    Where there is a `prototype`, an object in memory, teachers are copies of it with these parameters. To a worker it
    goes by cloudpickle, with the code of a class that cannot be imported.
    """

    name: str
    params: dict[str, Any]
    features: tuple[dict[str, Any], ...] = ()
    weight: float = 1.0
    key: str = "teachers.0"
    resources: Resources | None = None
    prototype: Any = None

    def estimator(self, random_state: int) -> BaseEstimator:
        """A fresh classifier."""
        key, prototype = f"{self.key}.name", self.prototype
        if prototype is None:
            return build_estimator(self.name, self.params, random_state, key)
        if isinstance(prototype, _Packed):  # until a worker wants it, which can then say what is wrong
            try:
                prototype = pickle.loads(prototype.content)  # packed by this run's driver
            except Exception as error:  # a module that this worker does not have
                raise ConfigError(
                    f"{key} = {self.name!r}: workers cannot import it ({type(error).__name__}: {error}); install its "
                    "module there, or define the class in the script or notebook itself"
                ) from None
        return copied_estimator(prototype, self.params, random_state, key)

    def __getstate__(self) -> dict[str, Any]:
        if self.prototype is None or isinstance(self.prototype, _Packed):
            return vars(self)
        import cloudpickle

        try:
            return vars(self) | {"prototype": _Packed(cloudpickle.dumps(self.prototype))}
        except Exception as error:
            what = f"{self.key}.name = {self.name!r}"
            raise ConfigError(f"{what}: cannot be sent to workers ({type(error).__name__}: {error})") from None

    def build_features(self) -> Features:
        """The transforms that come first."""
        return build_features(self.features, f"{self.key}.features")


def recipe_of(model: Model, key: str) -> Recipe:
    """The recipe that one entry of the config describes."""
    features = tuple(f.model_dump() for f in model.features)
    return Recipe(model.name, dict(model.params), features, key=key, prototype=model.prototype)


def recipes(families: Sequence[TeacherFamily]) -> list[Recipe]:
    """Every kind of teacher in the mixture: a family whose parameters `grid` is one kind for each combination."""
    result = []
    for number, family in enumerate(families):
        base = replace(recipe_of(family, f"teachers.{number}"), resources=family.resources)
        choices = [[(name, value) for value in values] for name, values in family.grid.items()]
        variants = [dict(chosen) for chosen in itertools.product(*choices)]
        for variant in variants:
            share = family.weight / len(variants)
            result.append(replace(base, params=base.params | variant, weight=share))
    return result


def assign_recipes(kinds: Sequence[Recipe], n_teachers: int) -> list[int]:
    """Which recipe each part gets: shares by weight, evenly spread, from the configuration alone.

    Smooth weighted round-robin: every part adds each weight to its recipe's credit, the richest recipe is
    chosen and pays the sum of the weights.
    """
    total = sum(recipe.weight for recipe in kinds)
    credit = [0.0] * len(kinds)
    chosen = []
    for _ in range(n_teachers):
        credit = [c + recipe.weight for c, recipe in zip(credit, kinds, strict=True)]
        best = max(range(len(kinds)), key=lambda i: (round(credit[i], 9), -i))
        credit[best] -= total
        chosen.append(best)
    return chosen


def seed_of_part(seed: int, part: int, attempt: int = 0) -> int:
    """A teacher's random state: from configuration, part and attempt only."""
    digest = blake2b(f"{seed}/{part}/{attempt}".encode(), digest_size=4, person=b"teacher").digest()
    return int.from_bytes(digest, "little") % 2**31


def build_estimator(name: str, params: dict[str, Any], random_state: int, key: str) -> BaseEstimator:
    """The classifier a config names, by file of this folder or dotted path, seeded wherever it takes a seed."""
    return _checked_and_seeded(_built(name, params, key), name, random_state, key)


def copied_estimator(prototype: Any, params: dict[str, Any], random_state: int, key: str) -> BaseEstimator:
    """A copy of an object in memory, not fitted where it can say so, with `params` and seeded like any other."""
    name = full_name(prototype)
    try:
        try:
            estimator = clone(prototype, safe=False)
        except (RuntimeError, TypeError):  # a constructor that does not store what it is given
            estimator = copy.deepcopy(prototype)
        if params:
            estimator.set_params(**params)
    except Exception as error:  # a class of anybody's making
        raise ConfigError(f"{key} = {name!r}: cannot be copied ({type(error).__name__}: {error})") from None
    return _checked_and_seeded(estimator, name, random_state, key)


def _checked_and_seeded(estimator: Any, name: str, random_state: int, key: str) -> BaseEstimator:
    if not (hasattr(estimator, "fit") and hasattr(estimator, "predict")):
        raise ConfigError(f"{key} = {name!r}: not a classifier with fit and predict")
    from sklearn.utils import get_tags

    try:
        kind = get_tags(estimator).estimator_type
    except Exception:  # a class of anybody's making
        kind = getattr(estimator, "_estimator_type", None)
    if isinstance(kind, str) and kind != "classifier":
        what = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind.replace('_', ' ')}"
        raise ConfigError(f"{key} = {name!r}: {what}, not a classifier{_classifier_like(name)}")
    params = estimator.get_params() if hasattr(estimator, "get_params") else {}
    for one in (estimator, *params.values()):  # what scikit-learn would say of a value only when it is fitted
        if type(one).__module__.startswith("sklearn.") and callable(getattr(one, "_validate_params", None)):
            try:
                one._validate_params()
            except ValueError as error:
                raise ConfigError(f"{key} = {name!r}: {error}") from None
    unseeded = [n for n, value in params.items() if n.split("__")[-1] == "random_state" and value is None]
    if unseeded:
        estimator.set_params(**dict.fromkeys(unseeded, random_state))
    found: BaseEstimator = estimator
    return found


def _check_names(make: Any, name: str, params: dict[str, Any], key: str) -> None:
    """Raise ConfigError for a parameter that there is not."""
    try:
        known = inspect.signature(make).parameters
    except (TypeError, ValueError):  # of a class in C, or one that hides what it takes
        return
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()):
        return
    for wrong in params.keys() - known.keys():
        raise ConfigError(f"{key} = {name!r}: has no parameter {wrong!r}; {nearest(str(wrong), known)}")


def _classifier_like(name: str) -> str:
    """A hint: the classifier whose name differs in the last word alone."""
    for ending, other in (("Regressor", "Classifier"), ("SVR", "SVC")):
        module, _, cls = name.removesuffix(ending).rpartition(".") if name.endswith(ending) else ("", "", "")
        if module and hasattr(sys.modules.get(module), cls + other):
            return f"; did you mean '{module}.{cls}{other}'?"
    return ""


def describe(estimator: Any) -> dict[str, Any]:
    """An estimator object as a config would write it: `name`, and the `params` that differ from the defaults."""
    cls = type(estimator)
    if not hasattr(estimator, "get_params"):
        raise ConfigError(f"{cls.__name__}: has no get_params(), so it cannot be written into a config; name its class")
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        raise ConfigError(f"{cls.__name__}: workers cannot import it from here; put the class into a module of its own")
    params = {name: _described(value, f"{cls.__name__}.{name}") for name, value in _own_params(estimator).items()}
    return {"name": f"{_public_module(cls)}.{cls.__qualname__}", "params": params}


def described_or_kept(estimator: Any) -> tuple[dict[str, Any], Any]:
    """An estimator object as a config would write it, and None; else the object too, which has to be copied.

    What stands in the config of the latter is for people: the name of its class, and those parameters that are plain.
    """
    with suppress(ConfigError):
        return describe(estimator), None
    params: dict[str, Any] = {}
    for name, value in _own_params(estimator).items():
        with suppress(ConfigError):
            if _plain(value):
                params[name] = _described(value, name)
    return {"name": full_name(estimator), "params": params}, estimator


def full_name(estimator: Any) -> str:
    """Module and name of an object's class, whether it can be imported from there or not."""
    return f"{type(estimator).__module__}.{type(estimator).__qualname__}"


def _own_params(estimator: Any) -> dict[str, Any]:
    """The parameters that differ from the defaults of the class, as far as it tells."""
    try:
        known = inspect.signature(type(estimator)).parameters
    except (TypeError, ValueError):  # of a class in C, or one that hides what it takes
        known = {}  # type: ignore[assignment]
    params = {}
    for name, value in estimator.get_params(deep=False).items() if hasattr(estimator, "get_params") else ():
        default = known[name].default if name in known else inspect.Parameter.empty
        if value is not default and not (type(value) is type(default) and _plain(value) and value == default):
            params[name] = value
    return params


def _built(name: str, params: dict[str, Any], key: str) -> Any:
    make = TEACHERS.find(name, key)
    if not isinstance(params, dict):
        raise ConfigError(f"{key} = {name!r}: params must be 'parameter: value' lines, not {params!r}")
    _check_names(make, name, params, key)
    values = {parameter: _value(value, f"{key}({parameter})") for parameter, value in params.items()}
    if values.get("memory") is not None:  # of a Pipeline: a folder of pickles, which run code when they are read
        require_trusted("joblib.Memory", f"{key}(memory)")
    try:
        return make(**values)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # a user's own class may refuse in any way
        raise ConfigError(f"{key} = {name!r}: {error}") from None


def _value(value: Any, key: str) -> Any:
    """Inside parameters, `{name: dotted.path, params: {…}}` stands for an object, as the steps of a Pipeline are."""
    if isinstance(value, dict):
        if "." in str(value.get("name", "")) and value.keys() <= {"name", "params"}:
            return _built(value["name"], value.get("params") or {}, key)
        return {name: _value(item, key) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_value(item, key) for item in value]
        named = len(items) == 2 and isinstance(items[0], str) and hasattr(items[1], "get_params")
        return tuple(items) if named else items
    return value


def _described(value: Any, key: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key}: {value} cannot be written into a config; use finite numbers")
    if _plain(value):
        return value
    if isinstance(value, (list, tuple)):
        return [_described(item, key) for item in value]
    if isinstance(value, dict):
        return {name: _described(item, key) for name, item in value.items()}
    if hasattr(value, "get_params") and not isinstance(value, type):
        return describe(value)
    raise ConfigError(f"{key}: a {type(value).__name__} cannot be written into a config; use plain values")


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _public_module(cls: type) -> str:
    """`sklearn.svm` rather than `sklearn.svm._classes`, if the class can be imported from there too."""
    module = cls.__module__
    while "._" in module:
        shorter = module.rpartition(".")[0]
        if getattr(importlib.import_module(shorter), cls.__qualname__, None) is not cls:
            break
        module = shorter
    return module


_CONSTANT, _NETWORK, _PICKLE = b"c", b"n", b"p"


class PartClassifier:
    """Adapts a scikit-learn style classifier to the configured set of classes.

    A part may lack classes, hold one class only, or be empty: then the answer is that class, or class 0.
    Labels are re-coded to 0 … m−1 for the estimator, since some want that; `UNANSWERED` passes through, for
    semi-supervised estimators. Images are flattened unless the estimator says `accepts_images = True`.
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: NDArray, y: NDArray[np.int64], sample_weight: NDArray[np.float64] | None = None) -> PartClassifier:
        """Fit the estimator, if the part has two classes or more."""
        self.present_ = np.unique(y[y != UNANSWERED])
        if len(self.present_) >= 2:
            coded = np.searchsorted(self.present_, y)
            further = {} if sample_weight is None else {"sample_weight": sample_weight}
            self.estimator.fit(self.shaped(X), np.where(y == UNANSWERED, UNANSWERED, coded), **further)
        return self

    def predict(self, X: NDArray) -> NDArray[np.int64]:
        """Labels among those of the part."""
        if len(self.present_) < 2:
            constant = self.present_[0] if len(self.present_) else 0
            return np.full(len(X), constant, dtype=np.int64)
        coded = np.asarray(self.estimator.predict(self.shaped(X))).astype(np.int64).reshape(-1)
        return self.present_[coded].astype(np.int64)

    def shaped(self, X: NDArray) -> NDArray:
        """Examples as the estimator takes them: images, or rows of numbers."""
        return X if getattr(self.estimator, "accepts_images", False) else X.reshape(len(X), math.prod(X.shape[1:]))


def constant(y: NDArray[np.int64], n_classes: int) -> PartClassifier:
    """A stand-in where training failed: it always votes for the most frequent label of its part."""
    teacher = PartClassifier(None)
    known = y[(y >= 0) & (y < n_classes)]
    teacher.present_ = np.array([np.bincount(known, minlength=n_classes).argmax()])
    return teacher


def pack(teacher: PartClassifier) -> bytes:
    """The teacher with all it learned.

    Networks are safetensors. Everything else is a pickle, since users bring classes of their own; cloudpickle's, which
    also holds the code of a class that cannot be imported, such as one of a notebook.
    """
    import cloudpickle

    from pate.teachers.network import Network

    present = teacher.present_.tolist()
    if len(present) < 2:
        return _CONSTANT + json.dumps(present).encode()
    if isinstance(teacher.estimator, Network):
        about = {"present": present, "learned": teacher.estimator.learned()}
        return _NETWORK + tensors_to_bytes(teacher.estimator.weights(), about)
    return _PICKLE + cloudpickle.dumps((present, teacher.estimator))


def unpack(payload: bytes, recipe: Recipe) -> PartClassifier:
    """The teacher again. Only for bytes that this run wrote, since a pickle can run code: whoever calls it has checked
    their seals (`pate.voters.teachers._checkpoints`)."""
    kind, content = payload[:1], payload[1:]
    estimator: Any = None
    if kind == _CONSTANT:
        present = json.loads(content)
    elif kind == _NETWORK:
        network: Any = recipe.estimator(0)
        weights, about = tensors_from_bytes(content)
        present, estimator = about["present"], network.restore(weights, about["learned"])
    else:
        present, estimator = pickle.loads(content)
    teacher = PartClassifier(estimator)
    teacher.present_ = np.asarray(present, dtype=np.int64)
    return teacher
