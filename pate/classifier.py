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
from pate.errors import ConfigError, PateError
from pate.runs.notebook import labels_table

if TYPE_CHECKING:
    from pate.config import Config
    from pate.data.dataset import Dataset
    from pate.mechanisms import Mechanism

_QUERIES = 200
_CELLS, _EXAMPLES_PER_CELL = 100, 4
_EPSILON = 2.0
_BITS = 128


_ONLY_FOR = {"teachers": ("teachers", "n_teachers"), "neighbours": ("features", "votes")}


class PrivacyWarning(UserWarning):
    """Something that the guarantee does not cover, or that is taken to be public."""


class PATEClassifier(ClassifierMixin, BaseEstimator):
    """A classifier that may be published: it learns from noisy votes of teachers, each trained on its part of the data.

    With `voters="neighbours"` there are no teachers: every record votes, with its own label, in the cell of public
    examples that it is nearest to, and all cells together cost what one answer does (docs/neighbours.md).

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
    queries : how many public examples to have labelled; all, but not more than 200, by default. With neighbours, the
        number of cells: 100, or a quarter of the public examples if that is less
    student : classifier, "mixmatch", "gan" or {"name": ..., "params": ...}; logistic regression by default
    classes : the labels there are
    public_fraction : share of the records taken as public where `X_public` is not given
    backend : "local" for teachers in this process, "ray" for a pool of workers
    random_state : seed of teachers, cells and student
    voters : "teachers", or "neighbours" for records that vote themselves
    features : with neighbours, public features that cells are made in, as in a config: names, or {"name", "params"};
        by default X itself, each column by its spread among the public examples
    votes : with neighbours, in how many of its nearest cells a record votes

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

    Every record a voter, at a smaller ε; the noise is worked out:

    >>> model = PATEClassifier(voters="neighbours", epsilon=0.5, queries=10, classes=["left", "right"])
    >>> model.fit(X, y, X_public=X_public).predict([[3, 0], [-3, 0]]).tolist()
    ['right', 'left']
    >>> round(model.epsilon_, 3), len(model.labels_)
    (0.5, 60)
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
        voters: Literal["teachers", "neighbours"] = "teachers",
        features: Any = None,
        votes: int = 1,
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
        self.voters = voters
        self.features = features
        self.votes = votes

    def fit(self, X: Any, y: ArrayLike, X_public: Any = None) -> PATEClassifier:
        """Have `X_public` labelled by a noisy vote, of teachers or of (X, y) itself, and train the student on that."""
        from pate.console import Quiet
        from pate.pipeline import run
        from pate.runs.run import Run

        _refuse_fitted_before(self)
        self._check_voters()
        data = self._dataset(X, y, X_public)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pate-"))) / "run"
            outcome = run(self._config(data), folder, data=data, force=True, console=Quiet(), pages=False)
            finished = Run.load(folder)
            released, self.student_ = finished.labels, finished.student()
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
            range=self._encoder.range,
            input="as the rows of X",
        )

    def _records(self, X: Any, y: ArrayLike) -> tuple[Any, NDArray[np.int64]]:
        """X as it is, if it is a frame, and labels by their position in `classes_`."""
        if is_frame(X):
            validate_data(self, X, skip_check_array=True)
            labels = column_or_1d(y, warn=True)
        else:
            finite = self.voters == "teachers"  # a record that is no number casts no vote, and is no reason to stop
            X, labels = validate_data(self, X, y, dtype=np.float32, ensure_min_samples=2, ensure_all_finite=finite)
        from sklearn.utils.multiclass import check_classification_targets

        if self.voters == "teachers" or self.classes is None:
            check_classification_targets(labels)
        if self.classes is None:
            warnings.warn("the labels in y are taken as public knowledge; give classes", PrivacyWarning, stacklevel=4)
            self.classes_ = np.unique(labels)
        else:
            self.classes_ = np.unique(np.asarray(self.classes))
        if len(self.classes_) < 2:
            raise ValueError("Classifier can't train when only one class is present.")
        position = {label: i for i, label in enumerate(self.classes_.tolist())}
        coded = np.array([position.get(label, -1) for label in labels.tolist()], dtype=np.int64)
        if self.voters == "teachers" and (coded < 0).any():
            raise ValueError("y holds a label that is not among classes")
        return X, coded

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

    def _check_voters(self) -> None:
        """Raise where options are about the other kind of voters."""
        if self.voters not in _ONLY_FOR:
            raise ConfigError(f"voters = {self.voters!r}: must be 'teachers' or 'neighbours'")
        other = "neighbours" if self.voters == "teachers" else "teachers"
        defaults = inspect.signature(PATEClassifier).parameters
        for name in _ONLY_FOR[other]:
            if getattr(self, name) is not defaults[name].default and getattr(self, name) != defaults[name].default:
                raise ConfigError(f"{name}: is for voters = {other!r}; leave it out, or say so")

    def _config(self, data: Dataset) -> Config:
        from pate.config import parse_config

        n_public, n_classes, content = len(data.X_public), len(data.classes), self._of_voters()
        if self.voters == "neighbours":
            cells = max(1, min(_CELLS, n_public // _EXAMPLES_PER_CELL)) if self.queries is None else self.queries
            mechanism = self._mechanism_for_cells(cells, n_classes)
            content["neighbours"]["queries"] = cells
        else:
            asked = min(n_public, _QUERIES if self.queries is None else self.queries)
            mechanism = self._mechanism(asked, n_classes)
            content["budget"]["asked"] = asked
        given = asdict(mechanism)  # type: ignore[call-overload]
        content["mechanism"] = {"name": mechanism.name} | {k: v for k, v in given.items() if v is not None}
        return parse_config(content)

    def _of_voters(self) -> dict[str, Any]:
        """The config without what follows from the number of public examples."""
        content: dict[str, Any] = {
            "name": "classifier",
            "seed": self.random_state,
            "data": {"source": "arrays"},
            "budget": {"delta": self.delta, "epsilon": self.epsilon},
            "student": _student(self.student),
            "backend": self.backend,
        }
        if self.voters == "teachers":
            teachers = [_family(entry) for entry in _listed(self.teachers)]
            return content | {"n_teachers": self.n_teachers, "teachers": teachers}
        near = {"features": self.features or [], "votes": self.votes, "standardise": not self.features}
        return content | {"voters": "neighbours", "neighbours": near}

    def _mechanism(self, asked: int, n_classes: int) -> Mechanism:
        from pate.planning.plan import Workload, solve_noise

        if self.mechanism is not None:
            return self.mechanism
        return solve_noise({"name": "gnmax"}, self._target(), Workload(asked, None, self.delta, n_classes))

    def _mechanism_for_cells(self, cells: int, n_classes: int) -> Mechanism:
        from pate.mechanisms import Histogram
        from pate.neighbours.rounds import Round
        from pate.planning.neighbours import with_target

        if self.mechanism is not None:
            return self.mechanism
        return with_target([Round(cells, Histogram(1.0))], self.votes, self._target(), self.delta, n_classes)[
            0
        ].mechanism

    def _target(self) -> float:
        return _EPSILON if self.epsilon is None else self.epsilon

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
