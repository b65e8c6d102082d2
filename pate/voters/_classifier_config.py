"""From a `PATEClassifier`'s parameters to a config: who votes, how many, with which noise; and mistakes in its words.

Who votes follows from parameters and public figures alone. The number of private records is none of them: one record
more could change every part.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pate.accounting import _parameters as parameters
from pate.config import Config, parse_config
from pate.config._components import Component, TeacherFamily, is_estimator
from pate.config._settings import MAX_TEACHERS, check_delta
from pate.errors import ConfigError, DataError, PateError
from pate.mechanisms import Mechanism
from pate.voters import DEFAULT, kind_names, kind_of
from pate.voters.base import Voters

if TYPE_CHECKING:
    from pate.planning.plan import Choice

Kind = type[Voters[Any]]

_EPSILON = 2.0
_MAX_RECORDS = 10**12
_IN_ITS_WORDS = (
    (r"\bbudget\.(epsilon|delta)\b", r"\1"),
    (r"\bbudget\.max_queries\b|\bneighbours\.cells\b", "max_queries"),
    (r"\bneighbours(\.|: )(votes_per_record|features)\b", r"\2"),
    (r"\bteachers\.(\d+)\.(name|params|weight)\b", r"teachers[\1]"),
    (r"\bstudent\.params\.estimator\b|\bstudent\.name\b", "student"),
    (r"\btarget_epsilon\b", "epsilon"),
    (r"^seed\b", "random_state"),
    (r"use fewer teachers, or add", "use fewer teachers, give public_record_count, or voters='neighbours', or add"),
    (r", or budget\.allow_large_delta: true if you know why", ""),
)


_ADVICE = re.compile(
    r"( The labels are paid for and kept in| What was paid for is kept|[;:,] (then )?(go on with )?resume).*"
)
_INSTEAD = "; nothing of this fit is kept, and another adds its ε to what this one may have spent"


class InvalidParameter(ConfigError, ValueError):
    """A parameter or an argument of `PATEClassifier` that it cannot work with."""


class Chosen(NamedTuple):
    """Who votes, and the recommendation that is followed, if any is."""

    kind: Kind
    choice: Choice | None = None

    def name(self, given: Mapping[str, Any]) -> str:
        """What a config calls the kind."""
        return str(given["voters"]) if "." in str(given["voters"]) else self.kind.name


@contextmanager
def in_its_words() -> Iterator[None]:
    """Raise mistakes as ValueErrors that name the estimator's parameters in place of a config's keys.

    What goes wrong otherwise keeps its kind; there is no run to go on with, as errors of `pate run` advise.
    """
    try:
        yield
    except PateError as error:
        text = _ADVICE.sub(_INSTEAD, str(error))
        for words, ours in _IN_ITS_WORDS:
            text = re.sub(words, ours, text)
        kind = InvalidParameter if isinstance(error, ConfigError | DataError) else type(error)
        raise kind(text) from None


def check_parameters(given: Mapping[str, Any]) -> None:
    """Raise ValueError or TypeError for a parameter that makes no sense whatever the data are."""
    teachers, mechanism = given["teachers"], given["mechanism"]
    if isinstance(teachers, list | tuple) and not teachers:
        raise InvalidParameter("teachers = []: must hold at least one classifier; None is logistic regression")
    for number, entry in enumerate([] if teachers is None else listed_teachers(teachers)):
        name = f"teachers[{number}]" if isinstance(teachers, list | tuple) else "teachers"
        estimator, weight = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, 1.0)
        _check_estimator(name, estimator, "a classifier, or (classifier, weight) in a list")
        parameters.number(weight, f"{name}: weight", above=0, most=1e6)
    if mechanism is not None and not isinstance(mechanism, Mechanism):
        wanted = "must be one of pate.mechanisms, such as GNMax(sigma=40), or None for the least noise within epsilon"
        if inspect.isclass(mechanism) and issubclass(mechanism, Mechanism):
            raise TypeError(f"mechanism = {mechanism.__name__}: is a class; {wanted}")
        raise TypeError(f"mechanism = {parameters.shown(mechanism)}: {wanted}")
    student, classes = given["student"], given["classes"]
    if student is not None and not isinstance(student, str | Mapping):
        _check_estimator("student", student, "a classifier, or the name of a student")
    if classes is not None and len(np.unique(np.asarray(classes))) < 2:
        raise InvalidParameter(f"classes = {parameters.shown(classes)}: must hold at least two labels")
    for name, least, most in (
        ("n_teachers", 2, MAX_TEACHERS),
        ("max_queries", 1, parameters.MAX_QUERIES),
        ("public_record_count", 1, _MAX_RECORDS),
    ):
        if given[name] is not None:
            parameters.whole(given[name], name, least=least, most=most)
    if given["epsilon"] is not None:
        parameters.epsilon(given["epsilon"])
    parameters.delta(given["delta"])
    parameters.number(given["public_fraction"], "public_fraction", above=0, below=1)
    parameters.whole(given["votes_per_record"], "votes_per_record", least=1)
    if given["n_jobs"] is not None and (parameters.whole(given["n_jobs"], "n_jobs", least=-(2**15)) == 0):
        raise InvalidParameter("n_jobs = 0: must be None, a number of processes, or negative (-1: one per core)")
    named = "." in str(given["voters"])  # a kind of the user's, by the dotted path of its class
    offered = sorted((n for n in kind_names() if kind_of(n).classifier_parameters), key=lambda n: n != DEFAULT)
    known_kinds = (given["voters"],) if named else ("auto", *offered)
    for name, known in (("voters", known_kinds), ("backend", ("local", "ray"))):
        if given[name] not in known:
            *first, last = map(repr, known)
            choices = f"{', '.join(first)} or {last}" if first else last
            raise InvalidParameter(f"{name} = {parameters.shown(given[name])}: must be {choices}")
    _kind_named(given)
    random_state = given["random_state"]
    if isinstance(random_state, np.random.Generator):
        raise TypeError("random_state = Generator: must be None, a whole number or a numpy.random.RandomState")
    if random_state is not None and not isinstance(random_state, np.random.RandomState):
        parameters.seed(random_state, "random_state")


def seed_of(random_state: Any) -> int:
    """A seed: the number itself, or drawn as scikit-learn does it from a RandomState or from numpy's own (None)."""
    from sklearn.utils import check_random_state

    if isinstance(random_state, np.random.RandomState) or random_state is None:
        return int(check_random_state(random_state).randint(2**31 - 1))
    return parameters.seed(random_state, "random_state")


def choose_voters(given: Mapping[str, Any], n_public: int, n_classes: int) -> Chosen:
    """Who votes: as parameters say; else as `pate plan` recommends for `public_record_count`; else the usual kind."""
    kind, count = _kind_named(given), given["public_record_count"]
    if count is not None:
        check_delta(given["delta"], count, key="delta")
    is_open = kind is None or not kind.is_decided(given)
    found = _recommended(given, kind, n_public, n_classes) if count is not None and is_open else None
    return Chosen(kind or kind_of(DEFAULT if found is None else found.voters), found)


def config_of(given: Mapping[str, Any], chosen: Chosen, seed: int, n_public: int, n_classes: int) -> Config:
    """What the pipeline is run with."""
    sections, mechanism = chosen.kind.for_classifier(given, chosen.choice, n_public, n_classes)
    content: dict[str, Any] = {
        "name": "classifier",
        "voters": chosen.name(given),
        "seed": seed,
        "data": {"source": "arrays"},
        "student": _student(given["student"]),
        "backend": given["backend"],
        **sections,
        "budget": {"delta": given["delta"], "epsilon": given["epsilon"], **sections.get("budget", {})},
    }
    if given["n_jobs"] is not None and given["n_jobs"] > 0:
        content["ray"] = {"workers": {"max": given["n_jobs"]}}
    settings = asdict(mechanism)  # type: ignore[call-overload]
    content["mechanism"] = {"name": mechanism.name} | {k: v for k, v in settings.items() if v is not None}
    return parse_config(content)


def _kind_named(given: Mapping[str, Any]) -> Kind | None:
    """The voters that parameters name or are for; None where they leave it open."""
    kinds = {name: kind_of(name) for name in kind_names()}
    changed = {n for n, value in given.items() if value is not None and not (n == "votes_per_record" and value == 1)}
    own = {name: [n for n in cls.classifier_parameters if n in changed] for name, cls in kinds.items()}
    kind: Kind | None = None
    if given["voters"] != "auto":
        kind = kind_of(given["voters"])
    elif given["mechanism"] is not None or any(own.values()):
        suited = [name for name, cls in kinds.items() if given["mechanism"] is None or cls.suits(given["mechanism"])]
        suited.sort(key=lambda name: (not own[name], name != DEFAULT))
        kind = kinds[suited[0]] if suited else None
    for name, cls in kinds.items():
        if kind is not None and cls is not kind:
            for parameter in [n for n in own[name] if n not in kind.classifier_parameters]:
                raise InvalidParameter(f"{parameter}: is for voters = {name!r}; leave it out, or say so")
    return kind


def _recommended(given: Mapping[str, Any], kind: Kind | None, n_public: int, n_classes: int) -> Choice | None:
    """The first recommendation of that kind; None where it is used whether it is recommended or not."""
    from pate.planning.plan import recommend

    count, target = given["public_record_count"], target_of(given)
    try:
        found = recommend(count, n_classes, target, given["delta"], n_public)
    except ConfigError:
        if kind is not None and not kind.needs_recommendation:
            return None
        raise
    choices = [one for one in (found.choice, *found.others) if one.answered is None]
    choices = [one for one in choices if kind is None or one.voters == kind.name]
    if not choices and kind is not None and kind.needs_recommendation:
        raise InvalidParameter(
            f"public_record_count = {count}: too few for voters = {kind.name!r} within epsilon = {target:g}, whose "
            "noise would drown every vote; use other voters, or allow more"
        )
    return choices[0] if choices else None


def target_of(given: Mapping[str, Any]) -> float:
    """The ε that the estimator's parameters allow."""
    return _EPSILON if given["epsilon"] is None else float(given["epsilon"])


def listed_teachers(teachers: Any) -> list[Any]:
    if teachers is None:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        return [make_pipeline(StandardScaler(), LogisticRegression())]  # each scales by its own part
    return list(teachers) if isinstance(teachers, list | tuple) else [teachers]


def teacher_family(entry: Any) -> TeacherFamily:
    estimator, weight = entry if isinstance(entry, tuple) else (entry, 1.0)
    return TeacherFamily.model_validate({"estimator": estimator, "weight": weight})


def _student(student: Any) -> Component | Mapping[str, Any]:
    from pate.teachers import described_or_kept

    if isinstance(student, str):
        return {"name": student}
    if isinstance(student, Mapping):
        return student
    if student is None:
        usual = {"estimator": "sklearn.linear_model.LogisticRegression", "standardise": True}
        return {"name": "supervised", "params": usual}
    written, _ = described_or_kept(student)
    params = {"estimator": written["name"], "params": written["params"]}
    return Component(name="supervised", params=params).copied_from(student)


def _check_estimator(name: str, value: Any, wanted: str) -> None:
    if isinstance(value, type):
        raise TypeError(f"{name} = {value.__name__}: is a class; write {value.__name__}()")
    if not is_estimator(value):
        raise TypeError(f"{name} = {parameters.shown(value)}: must be {wanted}, with fit and predict")
