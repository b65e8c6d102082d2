"""Whether teachers and student take missing values, which the treatment `keep` leaves in: tried on public examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.errors import ConfigError, PateError

if TYPE_CHECKING:
    from pate.config import Config
    from pate.data.dataset import Dataset

_EXAMPLES = 60


def check_missing_values(config: Config, data: Dataset) -> None:
    """Raise ConfigError where a teacher, the student or the model without privacy cannot be fitted to NaN.

    Scikit-learn's own word counts where an estimator has one. Others are fitted to public examples with gaps in every
    column and made-up labels; networks of this package take none, though they would not complain.
    """
    if not data.gaps:
        return
    from pate.students.stage import new_student
    from pate.students.supervised import Supervised
    from pate.teachers import recipe_of, recipes
    from pate.voters.teachers.rounds import teacher_rounds

    X, y = _with_gaps(data.X_public, len(data.classes))
    kinds = [recipe for round_ in teacher_rounds(config) for recipe in recipes(round_.config.teachers)]
    for recipe in kinds + ([recipe_of(config.nonprivate, "nonprivate")] if config.nonprivate else []):
        where = f"{recipe.key}.name = {recipe.name!r}"
        if recipe.features:
            raise _takes_none(f"{recipe.key}.features")
        _check(recipe.estimator(config.seed), where, X, y)
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


def _with_gaps(X: NDArray, n_classes: int) -> tuple[NDArray, NDArray[np.int64]]:
    """Public examples, every third number of them missing, and made-up labels."""
    few = np.resize(np.asarray(X, dtype=np.float32), (max(_EXAMPLES, 6 * n_classes), *X.shape[1:]))
    rows, columns = np.indices(few.shape)
    few[(rows + columns) % 3 == 0] = np.nan
    return few, np.arange(len(few)) // 2 % n_classes


def _takes_none(where: str) -> ConfigError:
    return ConfigError(
        f"{where}: takes no missing values, which data.missing_values.treatment: keep leaves in; use "
        "sklearn.ensemble.HistGradientBoostingClassifier or the like, or write public_median or indicator"
    )
