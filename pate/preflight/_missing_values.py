"""Whether teachers and student take missing values, which the treatment `keep` leaves in: tried on public examples."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.errors import ConfigError, PateError
from pate.voters import voters_of

if TYPE_CHECKING:
    from pate.runs.context import RunContext

_EXAMPLES = 60


def check(context: RunContext) -> None:
    """Raise ConfigError where a teacher, the student or the non-private baseline cannot be fitted to NaN.

    Scikit-learn's own word counts where an estimator has one. Others are fitted to public examples with missing values
    in every column and dummy labels; networks of this package take none, though they would not complain.
    """
    config, public = context.config, context.public
    if not public.has_missing_values:
        return
    from pate.students._stage import new_student
    from pate.students.supervised import Supervised
    from pate.teachers import recipe_of

    X = np.resize(
        np.asarray(public.X_public, np.float32), (max(_EXAMPLES, 6 * public.n_classes), *public.X_public.shape[1:])
    )
    rows, columns = np.indices(X.shape)
    X[(rows + columns) % 3 == 0] = np.nan
    y = np.arange(len(X)) // 2 % public.n_classes
    for one in voters_of(config).estimators():
        if one.has_features:
            raise _takes_none(f"{one.key}.features")
        _check(one.estimator, f"{one.key}.name", X, y)
    if config.nonprivate is not None:
        recipe = recipe_of(config.nonprivate, "nonprivate")
        if recipe.features:
            raise _takes_none("nonprivate.features")
        _check(recipe.estimator(config.seed), f"nonprivate.name = {recipe.name!r}", X, y)
    student = new_student(config)
    if not isinstance(student, Supervised) or student.preprocessing:
        raise _takes_none(f"student.name = {config.student.name!r}")
    _check(student.build(), f"student.params.estimator = {student.estimator!r}", X, y)


def _check(estimator: Any, where: str, X: NDArray, y: NDArray[np.int64]) -> None:
    """Raise ConfigError unless an estimator says that it takes NaN or, of somebody's own that says nothing, does."""
    from sklearn.utils import get_tags

    allowed = known = False
    with suppress(Exception):  # a class of anybody's making
        allowed = bool(get_tags(estimator).input_tags.allow_nan)
        known = type(estimator).__module__.startswith(("sklearn.", "pate."))
    if not allowed and not known:
        try:
            estimator.fit(X, y)
            estimator.predict(X)
            allowed = True
        except PateError:
            raise
        except Exception:
            pass
    if not allowed:
        raise _takes_none(where)


def _takes_none(where: str) -> ConfigError:
    return ConfigError(
        f"{where}: takes no missing values, which data.missing_values.treatment: keep leaves in; use "
        "sklearn.ensemble.HistGradientBoostingClassifier or the like, or write public_median or indicator"
    )
