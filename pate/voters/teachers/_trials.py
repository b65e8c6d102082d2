"""Teachers tried on public examples before anything is charged; and a few of them rehearsed on labelled public rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.components._attempts import (
    SHOWN,
    AttemptFailed,
    as_config_error,
    attempt,
    dummy_labels,
    few_labels,
    shorten_training,
)
from pate.data.private import Records
from pate.data.public import PublicData
from pate.errors import ConfigError, DataError
from pate.mechanisms import UNANSWERED
from pate.networks._process import usable_cpus
from pate.teachers import PartClassifier, recipes
from pate.voters.base import RehearsedVotes
from pate.voters.teachers._checkpoints import InMemory
from pate.voters.teachers._worker import Teaching
from pate.voters.teachers.ensemble import Ensemble, Local, split_records

if TYPE_CHECKING:
    from pate.voters.teachers import TeachersConfig

_MANY = 2000  # examples for a teacher that fails on a few
_MAX_TEACHERS, _MIN_TEACHERS, _MIN_RECORDS = 10, 3, 20  # of a rehearsal, and rows of each where nobody may know better
_MAX_EXAMPLES, _MAX_QUERIES = 3000, 1000
_SECONDS = 5.0  # that the teachers of a rehearsal may take: else fewer of them, or none
_UNUSED_MECHANISM = {"name": "gnmax", "sigma": 1.0}  # nobody draws from it


def try_teachers(config: TeachersConfig, public: PublicData) -> None:
    """Raise ConfigError where a kind of teacher does not work on public examples.

    That is its features, and for scikit-learn's classifiers a fit, on a few examples or, if it fails on those, on more;
    workers try all kinds again where they are trained.
    """
    for recipe in recipes(config.teachers):
        with as_config_error():
            with attempt(f"{recipe.key}.features", "computed"):
                shown = recipe.build_features().transform(public.X_public[:SHOWN])
                if len(shown) != len(public.X_public[:SHOWN]):
                    raise ValueError("not one row per example")
            if not type(recipe.estimator(config.seed)).__module__.startswith("sklearn."):
                continue
            few, many = (min(n, len(public.X_public)) for n in (few_labels(public.n_classes), _MANY))
            for size in dict.fromkeys((few, many)):
                try:
                    with attempt(f"{recipe.key}.name = {recipe.name!r}", "trained"):
                        X = recipe.build_features().transform(public.X_public[:size])
                        teacher = PartClassifier(recipe.estimator(config.seed))
                        teacher.fit(X, dummy_labels(size, public.n_classes)).predict(X[:SHOWN])
                    break
                except AttemptFailed:
                    if size == many:
                        raise


def try_rounds_by_student(config: TeachersConfig, student: Any, X: NDArray, labels: NDArray[np.int64]) -> None:
    """Raise ConfigError where teachers of a later round could not be fitted to what the student sees."""
    from pate.students._neural import NeuralStudent

    if not any(one.features == "student" for one in config.teacher_rounds):
        return
    if not isinstance(student, NeuralStudent):
        raise ConfigError(
            f"teacher_rounds.features = 'student': {config.student.name!r} learns no features that workers could "
            "be given; use mixmatch or gan as student"
        )
    answered = labels != UNANSWERED
    seen, given = student.features(X[: len(labels)][answered]), labels[answered]
    for round_ in config.rounds:
        for recipe in recipes(round_.config.teachers) if round_.by_student else ():
            what = f"teacher_rounds.{round_.number - 1}.teachers = {recipe.name!r}"
            try:
                with attempt(what, "fitted to a student's features"):
                    found = recipe.build_features().transform(seen)
                    teacher = PartClassifier(shorten_training(recipe.estimator(config.seed)))
                    teacher.fit(found, given).predict(found[:SHOWN])
            except DataError as error:
                raise ConfigError(f"{what}: cannot come after a student's features: {error}") from None


def rehearse_teachers(
    config: TeachersConfig, public: PublicData, X: NDArray, y: NDArray[np.int64], held_out: NDArray
) -> RehearsedVotes | None:
    """Votes of a few teachers, each of about as many rows as in the run, where anybody may know how many that are."""
    n_rows, known = len(X), getattr(config.data, "public_record_count", None)
    each = max(_MIN_RECORDS, n_rows // _MAX_TEACHERS) if known is None else max(2, known // config.n_teachers)
    number = min(config.n_teachers, _MAX_TEACHERS, max(_MIN_TEACHERS, n_rows // each))
    first = config.rounds[0].config
    families = tuple(one for one in first.teachers if config.backend == "local" or _is_trusted_here(one.name))
    if not families:
        return None
    changes = {"teachers": families, "n_teachers": number, "mechanism": _UNUSED_MECHANISM, "backend": "local"}
    few = first.model_copy(update=changes)
    seconds = expected_seconds(few, public.X_public, each, public.n_classes)
    if seconds > _SECONDS:
        number = math.floor(number * _SECONDS / seconds)
        few = few.model_copy(update={"n_teachers": number})
        if number < min(config.n_teachers, _MIN_TEACHERS):
            return None
    kept = np.random.default_rng(config.seed).permutation(n_rows)[: number * each]
    examples = public.X_public[:_MAX_EXAMPLES]
    queries = examples[: min(config.budget.max_queries, _MAX_QUERIES)]
    votes = count_votes(few, public, Records(X[kept], y[kept]), np.concatenate([queries, held_out]))
    labels, of_held_out = votes[: len(queries)].argmax(axis=1), votes[len(queries) :]
    voters = f"{number} teachers of about {len(kept) // number:,} rows"
    return RehearsedVotes(voters, examples, labels, None, of_held_out / of_held_out.sum(axis=1, keepdims=True))


def _is_trusted_here(name: str) -> bool:
    """Whether teachers of a kind are trained here too where workers train the run's: not those of somebody's own."""
    return "." not in name or name.startswith(("sklearn.", "pate."))


_KEY_BYTES = 32  # of a key that nobody has to keep: where records are public, the same parts come out each time


def count_votes(config: TeachersConfig, public: PublicData, records: Records, X: NDArray) -> NDArray[np.int64]:
    """Votes about `X` of the teachers of a config, trained on records that are public."""
    teaching = Teaching.of(config, public.n_classes, shape=public.X_public.shape[1:])
    with Ensemble(teaching, split_records(config, records, bytes(_KEY_BYTES))) as ensemble:
        ensemble.train()
        return ensemble.count(X)


def expected_seconds(config: TeachersConfig, X_public: NDArray, n_records: int, n_classes: int) -> float:
    """How long training would take on this machine, from a try of each recipe on public examples."""
    seconds = Local(Teaching.of(config, n_classes), InMemory()).probe(X_public, n_records)
    return seconds / (1 if config.backend == "local" else config.ray.workers.max or usable_cpus())
