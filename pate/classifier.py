"""`PATEClassifier`: the whole of PATE behind scikit-learn's `fit` and `predict`."""

from __future__ import annotations

import inspect
import tempfile
import warnings
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import assert_all_finite, check_consistent_length
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from pate.data._model_input import Encoder, is_frame, person_ids, split_off_public, with_columns_of
from pate.runs._console import labels_table
from pate.voters._classifier_config import (
    InvalidParameter,
    check_parameters,
    choose_voters,
    config_of,
    in_its_words,
    seed_of,
)

if TYPE_CHECKING:
    from pate.config import Config
    from pate.data.private import Records
    from pate.data.public import PublicData
    from pate.mechanisms import Mechanism

_NEVER = -float(np.finfo(np.float32).max)
"""What the decision function says of a class that no released label names."""


class PrivacyWarning(UserWarning):
    """Something that the guarantee does not cover, or that is taken to be public."""


class PATEClassifier(ClassifierMixin, BaseEstimator):
    """A classifier that may be published: it learns from noisy votes of teachers, each trained on its part of the data.

    With `voters="neighbours"` there are no teachers: every record votes, with its own label, in the cell of public
    examples that it is nearest to, and all cells together cost what one answer does (docs/neighbours.md).

    The guarantee, `epsilon_` at `delta_`, protects a record of (X, y) that is added, removed or changed; with `ids`,
    all records of a person. It covers everything that `fit` leaves behind (`student_`, `labels_`, `report_`,
    predictions). It follows from limits fixed before the first query, whatever the data are. What it rests on:

    * `X_public` are examples without labels that anybody may see. Without them, about `public_fraction` of the
      records (with `ids`, of the persons), chosen by a hash of each alone, are taken as public: **those are not
      protected**, and a warning says so. Their labels are not used.
    * `classes` is public knowledge. Without it, the labels that occur in `y` are taken as public, with a warning.
    * `public_record_count` is public knowledge too: a round figure that anybody may know. Nothing is ever computed
      from the number of records itself.
    * Every `fit` is a release of its own: the five fits of a cross-validation on the same records cost up to five
      times `epsilon_`. Noise comes from the operating system and never from `random_state`.
    * Nothing may be fitted on all private records beforehand. A scaler before this classifier in a `Pipeline` would
      be, and such a `Pipeline` is refused; put it into the teachers:
      `teachers=[make_pipeline(StandardScaler(), SVC())]`.
    * In a data frame, columns of categories become 0/1 columns: of the declared categories of a pandas categorical
      where `X_public` is given, of those among the public examples otherwise. A missing number becomes the median of
      the public examples.

    Parameters
    ----------
    teachers : classifier, or list of classifiers or of (classifier, weight) tuples, default=None
        Anything with `fit` and `predict`, also of a class that is defined in a notebook. Weights are shares of the
        parts. None is logistic regression on columns that are scaled by each teacher's own part. On Ray, workers
        must be able to import a class, unless it was defined in a notebook, a script or a function.
    n_teachers : int, default=None
        Number of parts, and of teachers; at least 2. None is what `pate plan` recommends for `public_record_count`
        records, and 250 where that is not given.
    mechanism : Mechanism, default=None
        One of `pate.mechanisms`, such as `GNMax(sigma=40)`; noise is measured in votes. None is the least noise that
        keeps to `epsilon`, of GNMax for teachers and of Histogram for neighbours.
    epsilon : float, default=None
        The most that may be spent, above 0. None is 2 where there is no mechanism, and no limit where there is one.
    delta : float, default=1e-5
        The probability with which the guarantee may fail: at most 0.001, and at most one over `public_record_count`.
    max_queries : int, default=None
        How many public examples are labelled at most; of neighbours, the number of cells. None is what `pate plan`
        recommends for `public_record_count` records; where that is not given, 200 examples, or 100 cells but at
        least 4 public examples for each.
    student : classifier, str or dict, default=None
        What learns from the labels: a classifier, also one of a notebook; "mixmatch" or "gan"; or
        `{"name": ..., "params": ...}` as in a config. None is logistic regression on columns that are scaled by the
        public examples.
    classes : sequence of labels, default=None
        The labels that there are. None takes those in `y` as public, with a warning.
    public_fraction : float, default=0.2
        Share of the records, or persons, that are taken as public where `X_public` is not given; between 0 and 1.
    backend : {"local", "ray"}, default="local"
        Where teachers are trained: on this machine, or by workers of a Ray cluster.
    random_state : int, RandomState instance or None, default=0
        Seed of the partition's public share, of teachers, cells and student; `seed_` after `fit`. A RandomState, or
        numpy's own for None, is drawn from at each `fit`. Noise has no seed.
    voters : {"auto", "teachers", "neighbours"}, default="auto"
        Who votes. "auto" is those that other parameters are for (`teachers`, `n_teachers` and `mechanism`: teachers;
        `features` and `votes_per_record`: neighbours); else what `pate plan` recommends for `public_record_count`
        records and the public examples; and teachers where that is not given.
    features : str, dict, or list of them, default=None
        With neighbours: the public features that cells are made in, as in a config: names, or `{"name", "params"}`.
        None is X itself, each column by its spread among the public examples.
    votes_per_record : int, default=1
        With neighbours: in how many of its nearest cells a record votes.
    public_record_count : int, default=None
        About how many private records (with `ids`, persons) there are, as anybody may know. Who votes, their number
        and that of the queries follow from it, and `delta` is checked against it. Never the exact number, if that is
        private.
    n_jobs : int, default=None
        Processes that train teachers: of this machine, or, with `backend="ray"`, the most workers. None is 1 here,
        and on Ray as many as the cluster has room for; -1 is one for each core. The votes are the same.
    verbose : bool or int, default=False
        Whether progress is shown on standard error. What depends on private records is shown at a terminal only.
    force : bool, default=False
        Train also where parts would have fewer than 5 records each, or none. Else that is a ValueError, as it is in
        `pate run`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, sorted.
    epsilon_, delta_ : float
        What this fit has cost: what may be published beside it.
    student_ : object
        The fitted student, which predicts. It has seen public examples and released labels only.
    labels_ : ndarray of int
        The released labels by their position in `classes_`; -1 where the mechanism declined to answer.
    public_rows_ : ndarray of int
        Which public examples `labels_` are of.
    report_ : pate.report.schema.Report
        The report of the run.
    seed_ : int
        The seed that was used.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of str
        Names of the columns, where X is a data frame.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, X_public = rng.normal(size=(600, 2)), rng.normal(size=(60, 2))
    >>> y = np.where(X[:, 0] > 0, "right", "left")
    >>> model = PATEClassifier(n_teachers=40, epsilon=4, max_queries=40, classes=["left", "right"])
    >>> model.fit(X, y, X_public=X_public).predict([[3, 0], [-3, 0]]).tolist()
    ['right', 'left']
    >>> model.epsilon_ <= 4
    True

    Every record a voter, at a smaller ε; the noise is computed:

    >>> model = PATEClassifier(voters="neighbours", epsilon=0.5, max_queries=10, classes=["left", "right"])
    >>> model.fit(X, y, X_public=X_public).predict([[3, 0], [-3, 0]]).tolist()
    ['right', 'left']
    >>> round(model.epsilon_, 3), len(model.labels_)
    (0.5, 60)

    All records of a person protected together:

    >>> persons = np.arange(600) // 3
    >>> model.fit(X, y, X_public=X_public, ids=persons).report_.privacy.unit
    'id'
    """

    def __init__(
        self,
        teachers: Any = None,
        n_teachers: int | None = None,
        mechanism: Mechanism | None = None,
        epsilon: float | None = None,
        delta: float = 1e-5,
        max_queries: int | None = None,
        student: Any = None,
        classes: Sequence[Any] | None = None,
        public_fraction: float = 0.2,
        backend: Literal["local", "ray"] = "local",
        random_state: int | np.random.RandomState | None = 0,
        voters: Literal["auto", "teachers", "neighbours"] = "auto",
        features: Any = None,
        votes_per_record: int = 1,
        public_record_count: int | None = None,
        n_jobs: int | None = None,
        verbose: bool | int = False,
        force: bool = False,
    ) -> None:
        self.teachers = teachers
        self.n_teachers = n_teachers
        self.mechanism = mechanism
        self.epsilon = epsilon
        self.delta = delta
        self.max_queries = max_queries
        self.student = student
        self.classes = classes
        self.public_fraction = public_fraction
        self.backend = backend
        self.random_state = random_state
        self.voters = voters
        self.features = features
        self.votes_per_record = votes_per_record
        self.public_record_count = public_record_count
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.force = force

    def fit(self, X: Any, y: ArrayLike, X_public: Any = None, ids: Any = None, **not_taken: Any) -> PATEClassifier:
        """Have `X_public` labelled by a noisy vote, of teachers or of (X, y) itself, and train the student on that.

        Parameters
        ----------
        X : array-like or data frame of shape (n_records, n_features)
            The private records. Sparse matrices are refused: a record becomes a dense row of 32-bit numbers.
        y : array-like of shape (n_records,)
            Their labels, among `classes`.
        X_public : array-like or data frame of shape (n_examples, n_features), default=None
            Examples without labels that anybody may see, with the same columns. None takes a share of X, which is
            then not protected, with a warning.
        ids : array-like of shape (n_records,), default=None
            Whose record each is: whole numbers or text. All records of a person are then protected together; a
            record without an id takes no part. None protects every record by itself.
        **not_taken : None
            `sample_weight` is refused, since every record has the same vote.

        Returns
        -------
        PATEClassifier
            The fitted classifier.
        """
        from pate.pipeline import run
        from pate.runs._console import Console, Quiet
        from pate.runs.run import Run

        if not_taken.pop("sample_weight", None) is not None:
            raise InvalidParameter(
                "sample_weight: is not taken; every record (or person, with ids) has the same vote, which the noise is "
                "made for: one that counted for more would be protected less than epsilon_ says"
            )
        if not_taken:
            raise TypeError(f"PATEClassifier.fit() got an unexpected keyword argument {next(iter(not_taken))!r}")
        _refuse_fitted_before(self)
        with in_its_words(), tempfile.TemporaryDirectory(prefix="pate-") as temporary:
            check_parameters(self.get_params(deep=False))
            public, private, config = self._prepared(X, y, X_public, ids)
            folder = Path(temporary) / "run"
            outcome = run(
                config,
                folder,
                public=public,
                private=private,
                force=bool(self.force),
                anchor="none",
                console=Console() if self.verbose else Quiet(),
                pages=False,
                n_jobs=self.n_jobs,
            )
            released = Run.load(folder).labels
        assert released is not None
        self.student_, self.report_ = outcome.student, outcome.report
        self.epsilon_, self.delta_ = outcome.report.privacy.epsilon, outcome.report.privacy.delta
        self.labels_ = released.labels
        self.public_rows_ = released.rows
        return self

    @property
    def partial_fit(self) -> NoReturn:
        """There is none: every fit is a release, whose ε adds to those before."""
        raise AttributeError(
            "PATEClassifier has no partial_fit: every fit is a release of its own and adds its epsilon_ to those "
            "before; fit once, on all records"
        )

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

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """The logarithm of `predict_proba`; minus infinity for a class that no released label names."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """What speaks for each of `classes_`, a column each; of two classes, one number for the second.

        That is the student's own decision function where it has one, and log-probabilities otherwise. An SVC of three
        or more classes predicts by its largest score only with `break_ties`.
        """
        check_is_fitted(self)
        X = self._encoded(X)
        scores = np.full((len(X), len(self.classes_)), _NEVER)
        if hasattr(self.student_, "scores"):
            scores[:, self.student_.classes_] = self.student_.scores(X)
        else:
            shares = self.student_.predict_proba(X)
            scores[:, self.student_.classes_] = np.log(np.maximum(shares, np.finfo(np.float64).tiny))
        return scores if len(self.classes_) > 2 else scores[:, 1] / 2 - scores[:, 0] / 2

    def _repr_html_(self) -> str:
        if not hasattr(self, "report_"):
            return f"<p>{escape(repr(self))}, not fitted</p>"
        answered = int((self.labels_ >= 0).sum())
        told = f"<p>PATE classifier, ε = {self.epsilon_:.3g} at δ = {self.delta_:g}; {answered} released labels:</p>"
        return told + labels_table(self.classes_, self.labels_)

    def _prepared(self, X: Any, y: ArrayLike, X_public: Any, ids: Any) -> tuple[PublicData, Records, Config]:
        """The records as the pipeline takes them, and its config; sets what scikit-learn wants to know."""
        from pate.data.private import Records
        from pate.data.public import PublicData

        self.seed_ = seed_of(self.random_state)
        X, labels = self._records(X, y)
        whole = X
        persons, left_out = None, 0
        if ids is not None:
            found = person_ids(ids)
            if len(found) != len(X):
                raise InvalidParameter(f"ids: {len(found)} of them for {len(X)} records; give one for each record")
            known = np.array([one is not None for one in found], dtype=bool)
            persons, left_out = [one for one in found if one is not None], int((~known).sum())
            X, labels = X[known], labels[known]
        is_split_off = X_public is None
        if X_public is None:
            is_public = split_off_public(X, persons, self.public_fraction, self.seed_)
            warnings.warn(
                f"about {100 * self.public_fraction:g} % of the {'records' if ids is None else 'persons'} are taken as "
                "public examples and are not protected; give X_public instead",
                PrivacyWarning,
                stacklevel=3,
            )
            numbers = np.isfinite(X).all(axis=1) if not is_frame(X) else is_public
            X_public, X, labels = X[is_public & numbers], X[~is_public], labels[~is_public]
            persons = None if persons is None else [one for one, out in zip(persons, is_public, strict=True) if not out]
        else:
            X_public = with_columns_of(X, X_public)
        if not len(X_public):
            raise InvalidParameter("X_public: holds no examples; give some, or raise public_fraction")
        given = self.get_params(deep=False)
        chosen = choose_voters(given, len(X_public), len(self.classes_))
        self._encoder = Encoder.of(X_public, by_values=is_split_off)
        refuses_missing = not chosen.kind.keeps_unusable_records
        if refuses_missing and not is_frame(X):
            assert_all_finite(whole, input_name="X", estimator_name=type(self).__name__)
        position = {label: i for i, label in enumerate(self.classes_.tolist())}
        coded = np.array([position.get(label, -1) for label in labels.tolist()], dtype=np.int64)
        if refuses_missing:
            check_classification_targets(labels)
            if (coded < 0).any():
                raise InvalidParameter("y: holds a label that is not among classes; add it there, or drop such records")
        private = Records(self._encoder.transform(X), coded, persons, left_out)
        public = PublicData(
            X_public=self._encoder.transform(X_public),
            classes=tuple(str(name) for name in self.classes_),
            features=self._encoder.names,
            range=self._encoder.range,
            input="as the rows of X",
        )
        return public, private, config_of(given, chosen, self.seed_, len(X_public), len(self.classes_))

    def _records(self, X: Any, y: ArrayLike) -> tuple[Any, NDArray]:
        """X as it is, if it is a frame, and the labels; sets `classes_`."""
        if is_frame(X):
            validate_data(self, X, skip_check_array=True)
            labels = column_or_1d(y, warn=True)
            check_consistent_length(X, labels)
        else:
            # a record that is no number is no reason to stop where neighbours vote; teachers refuse it later
            X, labels = validate_data(self, X, y, dtype=np.float32, ensure_min_samples=2, ensure_all_finite=False)
        if self.classes is None:
            check_classification_targets(labels)
            warnings.warn("the labels in y are taken as public knowledge; give classes", PrivacyWarning, stacklevel=4)
            self.classes_ = np.unique(labels)
        else:
            self.classes_ = np.unique(np.asarray(self.classes))
        if len(self.classes_) < 2:
            raise ValueError("Classifier can't train when only one class is present.")
        return X, labels

    def _encoded(self, X: Any) -> NDArray[np.float32]:
        if is_frame(X):
            validate_data(self, X, skip_check_array=True, reset=False)
        else:
            X = validate_data(self, X, dtype=np.float32, reset=False)
        return self._encoder.transform(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # noise is never seeded
        tags.classifier_tags.poor_score = True  # on the few records of a check
        return tags


def _refuse_fitted_before(classifier: PATEClassifier) -> None:
    """Raise where a Pipeline at work has fitted a transformer on all records before they came here.

    Scikit-learn tells the last step nothing of those before it: neither tags nor routed metadata name them, and what
    `fit` is given may be any array. So the Pipeline is looked for among the callers.
    """
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
