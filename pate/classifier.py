"""`PATEClassifier`: the whole of PATE behind scikit-learn's `fit` and `predict`."""

from __future__ import annotations

import inspect
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from pate.data.frames import Encoder, identity, is_frame
from pate.data.partition import contents, keyed_digest
from pate.errors import PateError
from pate.runs.notebook import labels_table

if TYPE_CHECKING:
    from pate.config import Config
    from pate.data.dataset import Dataset
    from pate.mechanisms import Mechanism

_QUERIES = 200
_EPSILON = 2.0
_BITS = 128


class PrivacyWarning(UserWarning):
    """Something that the guarantee does not cover, or that is taken to be public."""


class PATEClassifier(ClassifierMixin, BaseEstimator):
    """A classifier that may be published: it learns from noisy votes of teachers, each trained on its part of the data.

    The guarantee, `epsilon_` at `delta_`, protects a record of (X, y) that is added, removed or changed. It covers
    everything that `fit` leaves behind (`student_`, `labels_`, `report_`, predictions). It follows from limits fixed
    before the first query, whatever the data are. What it rests on:

    * `X_public` are examples without labels that anybody may see. Without them, about `public_fraction` of the
      records, chosen by a hash of each record alone, are taken as public: **those are not protected**, and a warning
      says so. Their labels are not used.
    * `classes` is public knowledge. Without it, the labels that occur in `y` are taken as public, with a warning.
    * Every `fit` is a release of its own: the five fits of a cross-validation on the same records cost up to five
      times `epsilon_`. Noise comes from the operating system and never from `random_state`.
    * Nothing may be fitted on all private records beforehand. A scaler before this classifier in a `Pipeline` would
      be, and such a `Pipeline` is refused; put it into the teachers:
      `teachers=[make_pipeline(StandardScaler(), SVC())]`.
    * In a data frame, columns of categories become 0/1 columns: of the declared categories of a pandas categorical,
      of those among the public examples otherwise. A missing number becomes the median of the public examples.

    Parameters
    ----------
    teachers : classifier, or list of classifiers or of (classifier, weight), default logistic regression
    n_teachers : how many parts and teachers
    mechanism : one of `pate.mechanisms`; by default GNMax with the least noise that keeps to `epsilon`
    epsilon : what may be spent at most; 2 where neither it nor a mechanism is given
    delta : the probability with which the guarantee may fail
    queries : how many public examples to have labelled; all, but not more than 200, by default
    student : classifier, "mixmatch", "gan" or {"name": ..., "params": ...}; logistic regression by default
    classes : the labels there are
    public_fraction : share of the records taken as public where `X_public` is not given
    backend : "local" for teachers in this process, "ray" for a pool of workers
    random_state : seed of teachers and student

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, X_public = rng.normal(size=(600, 2)), rng.normal(size=(60, 2))
    >>> y = np.where(X[:, 0] > 0, "right", "left")
    >>> model = PATEClassifier(n_teachers=40, epsilon=4, queries=40, classes=["left", "right"])
    >>> model.fit(X, y, X_public=X_public).predict([[3, 0], [-3, 0]]).tolist()
    ['right', 'left']
    >>> model.epsilon_ <= 4
    True
    """

    def __init__(
        self,
        teachers: Any = None,
        n_teachers: int = 250,
        mechanism: Mechanism | None = None,
        epsilon: float | None = None,
        delta: float = 1e-5,
        queries: int | None = None,
        student: Any = None,
        classes: Sequence[Any] | None = None,
        public_fraction: float = 0.2,
        backend: Literal["local", "ray"] = "local",
        random_state: int = 0,
    ) -> None:
        self.teachers = teachers
        self.n_teachers = n_teachers
        self.mechanism = mechanism
        self.epsilon = epsilon
        self.delta = delta
        self.queries = queries
        self.student = student
        self.classes = classes
        self.public_fraction = public_fraction
        self.backend = backend
        self.random_state = random_state

    def fit(self, X: Any, y: ArrayLike, X_public: Any = None) -> PATEClassifier:
        """Train teachers on (X, y), have `X_public` labelled by their noisy vote, train the student on that."""
        from pate.console import Quiet
        from pate.pipeline import run
        from pate.runs.run import Run

        _refuse_fitted_before(self)
        data = self._dataset(X, y, X_public)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pate-"))) / "run"
            outcome = run(self._config(data), folder, data=data, force=True, console=Quiet(), pages=False)
            finished = Run.load(folder)
            released, self.student_ = finished.labels, finished.student(trust=_Anything())
        assert released is not None
        self.report_ = outcome.report
        self.epsilon_, self.delta_ = outcome.report.privacy.epsilon, outcome.report.privacy.delta
        self.labels_ = released.labels
        self.public_rows_ = released.rows
        return self

    def predict(self, X: Any) -> NDArray:
        """The class of each example."""
        check_is_fitted(self)
        predicted: NDArray = self.classes_[self.student_.predict(self._encoded(X))]
        return predicted

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """How likely the student finds each of `classes_`."""
        check_is_fitted(self)
        X = self._encoded(X)
        probabilities = np.zeros((len(X), len(self.classes_)))
        probabilities[:, self.student_.classes_] = self.student_.predict_proba(X)
        return probabilities

    def _repr_html_(self) -> str:
        if not hasattr(self, "report_"):
            return f"<p>{escape(repr(self))}, not fitted</p>"
        answered = int((self.labels_ >= 0).sum())
        told = f"<p>PATE classifier, ε = {self.epsilon_:.3g} at δ = {self.delta_:g}; {answered} released labels:</p>"
        return told + labels_table(self.classes_, self.labels_)

    def _dataset(self, X: Any, y: ArrayLike, X_public: Any) -> Dataset:
        """The records as the pipeline takes them; sets what scikit-learn wants to know of an estimator."""
        from pate.data.dataset import Dataset, Records

        private, coded = self._records(X, y)
        if X_public is None:
            public = self._public(private, coded)
            warnings.warn(
                f"about {100 * self.public_fraction:g} % of the records are taken as public examples and are not "
                "protected; give X_public instead",
                PrivacyWarning,
                stacklevel=3,
            )
            examples, private, coded = private[public], private[~public], coded[~public]
            self._encoder = Encoder.of(examples)
        else:
            self._encoder = Encoder.of(X_public if is_frame(X_public) else np.asarray(X_public))
            examples = X_public
        shown = self._encoder.transform(examples)
        if not len(shown):
            raise ValueError("no public examples: give X_public, or raise public_fraction")
        return Dataset(
            private=Records(self._encoder.transform(private), coded),
            X_public=shown,
            classes=tuple(str(name) for name in self.classes_),
            features=self._encoder.names,
            input="as the rows of X",
        )

    def _records(self, X: Any, y: ArrayLike) -> tuple[Any, NDArray[np.int64]]:
        """X as it is, if it is a frame, and labels by their position in `classes_`."""
        if is_frame(X):
            validate_data(self, X, skip_check_array=True)
            labels = column_or_1d(y, warn=True)
        else:
            X, labels = validate_data(self, X, y, dtype=np.float32, ensure_min_samples=2)
        from sklearn.utils.multiclass import check_classification_targets

        check_classification_targets(labels)
        if self.classes is None:
            warnings.warn("the labels in y are taken as public knowledge; give classes", PrivacyWarning, stacklevel=4)
            self.classes_ = np.unique(labels)
        else:
            self.classes_ = np.unique(np.asarray(self.classes))
        if len(self.classes_) < 2:
            raise ValueError("Classifier can't train when only one class is present.")
        coded = np.searchsorted(self.classes_, labels)
        if not np.array_equal(self.classes_[np.minimum(coded, len(self.classes_) - 1)], labels):
            raise ValueError("y holds a label that is not among classes")
        return X, coded.astype(np.int64)

    def _public(self, X: Any, y: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which records are taken as public: a hash of the record's own features decides."""
        key = f"public {self.random_state}".encode()
        identities = [identity(row) for row in X.to_numpy(dtype=object)] if is_frame(X) else contents(X, 0 * y)
        limit = int(self.public_fraction * 2**_BITS)
        return np.array([int.from_bytes(keyed_digest(key, b"public", i), "little") < limit for i in identities])

    def _encoded(self, X: Any) -> NDArray[np.float32]:
        if is_frame(X):
            validate_data(self, X, skip_check_array=True, reset=False)
        else:
            X = validate_data(self, X, dtype=np.float32, reset=False)
        return self._encoder.transform(X)

    def _config(self, data: Dataset) -> Config:
        from pate.config import parse_config

        asked = min(len(data.X_public), _QUERIES if self.queries is None else self.queries)
        mechanism = self._mechanism(asked, len(data.classes))
        content: dict[str, Any] = {
            "name": "classifier",
            "seed": self.random_state,
            "n_teachers": self.n_teachers,
            "data": {"source": "arrays"},
            "teachers": [_family(entry) for entry in _listed(self.teachers)],
            "mechanism": {"name": mechanism.name, **asdict(mechanism)},  # type: ignore[call-overload]
            "budget": {"asked": asked, "delta": self.delta, "epsilon": self.epsilon},
            "student": _student(self.student),
            "backend": self.backend,
        }
        return parse_config(content)

    def _mechanism(self, asked: int, n_classes: int) -> Mechanism:
        from pate.planning.plan import Workload, solve_noise

        if self.mechanism is not None:
            return self.mechanism
        target = _EPSILON if self.epsilon is None else self.epsilon
        return solve_noise({"name": "gnmax"}, target, Workload(asked, None, self.delta, n_classes))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # noise is never seeded
        tags.classifier_tags.poor_score = True  # on the few records of a check
        return tags


def _refuse_fitted_before(classifier: PATEClassifier) -> None:
    """Raise where a Pipeline at work has fitted a transformer on all records before they came here."""
    from sklearn.pipeline import Pipeline
    from sklearn.utils import get_tags

    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Pipeline) and caller.steps[-1][1] is classifier:
            for name, step in caller.steps[:-1]:
                if hasattr(step, "fit") and get_tags(step).requires_fit:
                    raise ValueError(
                        f"the step {name!r} before it was fitted on all private records together, which voids the "
                        "guarantee; put it into the teachers: teachers=[make_pipeline(step, classifier)]"
                    )
        frame = frame.f_back


class _Anything(frozenset[str]):
    """What this process has just trained may be loaded again, whatever it is made of."""

    def __contains__(self, name: object) -> bool:
        return True


def _listed(teachers: Any) -> list[Any]:
    if teachers is None:
        from sklearn.linear_model import LogisticRegression

        return [LogisticRegression()]
    return list(teachers) if isinstance(teachers, (list, tuple)) else [teachers]


def _family(entry: Any) -> dict[str, Any]:
    from pate.teachers import describe

    estimator, weight = entry if isinstance(entry, tuple) else (entry, 1.0)
    return describe(estimator) | {"weight": weight}


def _student(student: Any) -> Mapping[str, Any]:
    from sklearn.linear_model import LogisticRegression

    from pate.teachers import describe

    if isinstance(student, str):
        return {"name": student}
    if isinstance(student, Mapping):
        return student
    if student is not None and not hasattr(student, "fit"):
        raise PateError(f"student = {student!r}: neither a classifier nor the name of a student")
    described = describe(LogisticRegression() if student is None else student)
    return {"name": "supervised", "params": {"estimator": described["name"], "params": described["params"]}}
