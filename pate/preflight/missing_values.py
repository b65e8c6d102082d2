"""Whether teachers and student take missing values, which the treatment `keep` leaves in: tried on public examples."""

from __future__ import annotations

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
    from pate.students.stage import new_student
    from pate.students.supervised import Supervised
    from pate.teachers import recipe_of

    X, y = _with_missing(public.X_public, public.n_classes)
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
    declared = accepts_missing(estimator)
    if declared is False:
        raise _takes_none(where)
    if declared is None:
        try:
            estimator.fit(X, y)
            estimator.predict(X)
        except PateError:
            raise
        except Exception:  # a class of anybody's making
            raise _takes_none(where) from None


def accepts_missing(estimator: Any) -> bool | None:
    """Whether an estimator says that it takes NaN; None where it is somebody's own and says nothing."""
    from sklearn.utils import get_tags

    try:
        allowed = bool(get_tags(estimator).input_tags.allow_nan)
    except Exception:
        return None
    ours = type(estimator).__module__.startswith(("sklearn.", "pate."))
    return allowed if allowed or ours else None


def _with_missing(X: NDArray, n_classes: int) -> tuple[NDArray, NDArray[np.int64]]:
    """Public examples, every third number of them missing, and dummy labels."""
    few = np.resize(np.asarray(X, dtype=np.float32), (max(_EXAMPLES, 6 * n_classes), *X.shape[1:]))
    rows, columns = np.indices(few.shape)
    few[(rows + columns) % 3 == 0] = np.nan
    return few, np.arange(len(few)) // 2 % n_classes


def _takes_none(where: str) -> ConfigError:
    return ConfigError(
        f"{where}: takes no missing values, which data.missing_values.treatment: keep leaves in; use "
        "sklearn.ensemble.HistGradientBoostingClassifier or the like, or write public_median or indicator"
    )
