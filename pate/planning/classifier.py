"""From a `PATEClassifier`'s parameters to a config: who votes, how many, with which noise; and mistakes in its words.

Who votes follows from parameters and public figures alone. The number of private records is none of them: one record
more could change every part.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pate.accounting import parameters
from pate.config import Config, parse_config
from pate.config.components import Component, TeacherFamily, is_estimator
from pate.config.settings import MAX_TEACHERS
from pate.config.validation import check_delta
from pate.errors import ConfigError, DataError, PateError
from pate.mechanisms import Histogram, Mechanism

if TYPE_CHECKING:
    from pate.planning.recommend import Choice

Kind = Literal["teachers", "neighbours"]

TEACHERS, QUERIES = 250, 200
"""How many teachers and queries there are where nothing says otherwise."""

_CELLS, _EXAMPLES_PER_CELL = 100, 4
_EPSILON = 2.0
_MAX_RECORDS = 10**12
_ONLY_FOR: dict[Kind, tuple[str, ...]] = {"teachers": ("teachers", "n_teachers"), "neighbours": ("features", "votes")}
_IN_ITS_WORDS = (
    (r"\bbudget\.(epsilon|delta)\b", r"\1"),
    (r"\bbudget\.max_queries\b|\bneighbours\.cells\b", "queries"),
    (r"\bneighbours(\.|: )votes_per_record\b|\bvotes_per_record\b", "votes"),
    (r"\bneighbours(\.|: )features\b", "features"),
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


@dataclass(frozen=True)
class Voters:
    """Who votes, on how many queries (cells, of neighbours)."""

    kind: Kind
    queries: int
    n_teachers: int | None = None


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
    _check_teachers(given["teachers"])
    _check_mechanism(given["mechanism"])
    student, classes = given["student"], given["classes"]
    if student is not None and not isinstance(student, str | Mapping):
        _check_estimator("student", student, "a classifier, or the name of a student")
    if classes is not None and len(np.unique(np.asarray(classes))) < 2:
        raise InvalidParameter(f"classes = {parameters.shown(classes)}: must hold at least two labels")
    for name, least, most in (
        ("n_teachers", 2, MAX_TEACHERS),
        ("queries", 1, parameters.MAX_QUERIES),
        ("public_record_count", 1, _MAX_RECORDS),
    ):
        if given[name] is not None:
            parameters.whole(given[name], name, least=least, most=most)
    if given["epsilon"] is not None:
        parameters.epsilon(given["epsilon"])
    parameters.delta(given["delta"])
    parameters.number(given["public_fraction"], "public_fraction", above=0, below=1)
    parameters.whole(given["votes"], "votes", least=1)
    if given["n_jobs"] is not None and (parameters.whole(given["n_jobs"], "n_jobs", least=-(2**15)) == 0):
        raise InvalidParameter("n_jobs = 0: must be None, a number of processes, or negative (-1: one per core)")
    for name, known in (("voters", ("auto", "teachers", "neighbours")), ("backend", ("local", "ray"))):
        if given[name] not in known:
            raise InvalidParameter(f"{name} = {parameters.shown(given[name])}: must be {_one_of(known)}")
    _kind_said(given)
    _check_random_state(given["random_state"])


def seed_of(random_state: Any) -> int:
    """A seed: the number itself, or drawn as scikit-learn does it from a RandomState or from numpy's own (None)."""
    from sklearn.utils import check_random_state

    if isinstance(random_state, np.random.RandomState) or random_state is None:
        return int(check_random_state(random_state).randint(2**31 - 1))
    return parameters.seed(random_state, "random_state")


def choose_voters(given: Mapping[str, Any], n_public: int, n_classes: int) -> Voters:
    """Who votes: as parameters say; else as `pate plan` recommends for `public_record_count`; else a fixed default."""
    kind, queries, n_teachers = _kind_said(given), given["queries"], given["n_teachers"]
    count = given["public_record_count"]
    if count is not None:
        check_delta(given["delta"], count, key="delta")
    open_questions = kind is None or queries is None or (kind == "teachers" and n_teachers is None)
    found = _recommended(given, kind, n_public, n_classes) if count is not None and open_questions else None
    kind = kind or (found.voters if found is not None else "teachers")  # type: ignore[assignment]
    if kind == "neighbours":
        if queries is None:
            queries = max(1, min(_CELLS, n_public // _EXAMPLES_PER_CELL)) if found is None else found.asked
        return Voters("neighbours", queries)
    if queries is None:
        as_recommended = found is not None and n_teachers is None and given["mechanism"] is None
        queries = found.asked if as_recommended and found is not None else QUERIES
    if n_teachers is None:
        n_teachers = TEACHERS if found is None else found.n_teachers
    return Voters("teachers", min(n_public, queries), n_teachers)


def config_of(given: Mapping[str, Any], voters: Voters, seed: int, n_classes: int) -> Config:
    """What the pipeline is run with."""
    content: dict[str, Any] = {
        "name": "classifier",
        "seed": seed,
        "data": {"source": "arrays"},
        "budget": {"delta": given["delta"], "epsilon": given["epsilon"]},
        "student": _student(given["student"]),
        "backend": given["backend"],
    }
    if given["n_jobs"] is not None and given["n_jobs"] > 0:
        content["ray"] = {"workers": {"max": given["n_jobs"]}}
    if voters.kind == "neighbours":
        features = given["features"] or []
        near = {
            "features": features,
            "votes_per_record": given["votes"],
            "standardise": not features,
            "cells": voters.queries,
        }
        content |= {"voters": "neighbours", "neighbours": near}
        mechanism = _mechanism_for_cells(given, voters.queries, n_classes)
    else:
        content |= {"n_teachers": voters.n_teachers, "teachers": [_family(one) for one in _listed(given["teachers"])]}
        content["budget"]["max_queries"] = voters.queries
        mechanism = _mechanism(given, voters.queries, n_classes)
    settings = asdict(mechanism)  # type: ignore[call-overload]
    content["mechanism"] = {"name": mechanism.name} | {k: v for k, v in settings.items() if v is not None}
    return parse_config(content)


def _kind_said(given: Mapping[str, Any]) -> Kind | None:
    """The voters that parameters name or are for; None where they leave it open."""
    said = {kind: [n for n in names if not _is_usual(n, given[n])] for kind, names in _ONLY_FOR.items()}
    kind: Kind | None = None
    if given["voters"] != "auto":
        kind = given["voters"]
    elif said["teachers"] or given["mechanism"] is not None:
        kind = "neighbours" if getattr(given["mechanism"], "releases_counts", False) else "teachers"
    elif said["neighbours"]:
        kind = "neighbours"
    for other in _ONLY_FOR:
        if kind is not None and other != kind and said[other]:
            raise InvalidParameter(f"{said[other][0]}: is for voters = {other!r}; leave it out, or say so")
    return kind


def _is_usual(name: str, value: Any) -> bool:
    return value is None or (name == "votes" and value == 1)


def _recommended(given: Mapping[str, Any], kind: Kind | None, n_public: int, n_classes: int) -> Choice | None:
    """The first recommendation of that kind; None where neighbours were asked for and none is recommended."""
    from pate.planning.recommend import recommend

    count, target = given["public_record_count"], _target(given)
    try:
        found = recommend(count, n_classes, target, given["delta"], n_public)
    except ConfigError:
        if kind == "neighbours":  # who ask for them want them; whatever comes costs the same
            return None
        raise
    choices = [one for one in (found.choice, *found.others) if kind in (None, one.voters) and one.answered is None]
    if not choices and kind == "teachers":
        raise InvalidParameter(
            f"public_record_count = {count}: too few for voters = 'teachers' within epsilon = {target:g}, whose noise "
            "would drown every vote; use voters = 'neighbours', or allow more"
        )
    return choices[0] if choices else None


def _mechanism(given: Mapping[str, Any], asked: int, n_classes: int) -> Mechanism:
    from pate.planning.plan import Workload, solve_noise

    if given["mechanism"] is not None:
        found: Mechanism = given["mechanism"]
        return found
    return solve_noise({"name": "gnmax"}, _target(given), Workload(asked, None, given["delta"], n_classes))


def _mechanism_for_cells(given: Mapping[str, Any], cells: int, n_classes: int) -> Mechanism:
    from pate.mechanisms.cell_rounds import Round
    from pate.planning.neighbours import with_target

    if given["mechanism"] is not None:
        found: Mechanism = given["mechanism"]
        return found
    rounds = [Round(cells, Histogram(1.0))]
    return with_target(rounds, given["votes"], _target(given), given["delta"], n_classes)[0].mechanism


def _target(given: Mapping[str, Any]) -> float:
    return _EPSILON if given["epsilon"] is None else float(given["epsilon"])


def _listed(teachers: Any) -> list[Any]:
    if teachers is None:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        return [make_pipeline(StandardScaler(), LogisticRegression())]  # each scales by its own part
    return list(teachers) if isinstance(teachers, list | tuple) else [teachers]


def _family(entry: Any) -> TeacherFamily:
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


def _check_teachers(teachers: Any) -> None:
    if isinstance(teachers, list | tuple) and not teachers:
        raise InvalidParameter("teachers = []: must hold at least one classifier; None is logistic regression")
    for number, entry in enumerate([] if teachers is None else _listed(teachers)):
        name = f"teachers[{number}]" if isinstance(teachers, list | tuple) else "teachers"
        estimator, weight = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, 1.0)
        _check_estimator(name, estimator, "a classifier, or (classifier, weight) in a list")
        parameters.number(weight, f"{name}: weight", above=0, most=1e6)


def _check_estimator(name: str, value: Any, wanted: str) -> None:
    if isinstance(value, type):
        raise TypeError(f"{name} = {value.__name__}: is a class; write {value.__name__}()")
    if not is_estimator(value):
        raise TypeError(f"{name} = {parameters.shown(value)}: must be {wanted}, with fit and predict")


def _check_mechanism(mechanism: Any) -> None:
    if mechanism is None or isinstance(mechanism, Mechanism):
        return
    wanted = "must be one of pate.mechanisms, such as GNMax(sigma=40), or None for the least noise within epsilon"
    if inspect.isclass(mechanism) and issubclass(mechanism, Mechanism):
        raise TypeError(f"mechanism = {mechanism.__name__}: is a class; {wanted}")
    raise TypeError(f"mechanism = {parameters.shown(mechanism)}: {wanted}")


def _check_random_state(random_state: Any) -> None:
    if random_state is None or isinstance(random_state, np.random.RandomState):
        return
    if isinstance(random_state, np.random.Generator):
        raise TypeError("random_state = Generator: must be None, a whole number or a numpy.random.RandomState")
    parameters.seed(random_state, "random_state")


def _one_of(known: tuple[str, ...]) -> str:
    *first, last = (repr(name) for name in known)
    return f"{', '.join(first)} or {last}"
