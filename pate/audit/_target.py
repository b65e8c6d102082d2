"""What is attacked: a model that a finished run released, with the data that only the owner of the records has; and how
models of its kind are trained, to compare it with.

Members are the private records of the run. Outsiders are its test examples: records of the same source that no part of
the run has learned from. Public examples are neither: a student has seen them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pate.components._registry import dotted_names, make_importable
from pate.config import BaselineConfig, Config, Model
from pate.data.partition import one_record_per_person
from pate.data.private import PrivateData, Records, records_of
from pate.data.public import PublicData
from pate.errors import DataError, PateError, RunError
from pate.runs._signatures import is_own
from pate.runs.run import Run, Version

if TYPE_CHECKING:
    from pate.teachers import Recipe

Kind = Literal["student", "baseline", "without privacy"]
Probabilities = NDArray[np.float64]


@dataclass(frozen=True)
class TargetExamples:
    """Examples with their true labels, and the rows they had among all of their kind."""

    X: NDArray
    y: NDArray[np.int64]
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.X)

    def some(self, most: int, seed: int) -> TargetExamples:
        """At most so many of them, chosen by seed and row alone: fewer are always among more."""
        if len(self) <= most:
            return self
        drawn = np.random.default_rng(seed).random(int(self.rows.max()) + 1)[self.rows]
        chosen = np.sort(np.argsort(drawn, kind="stable")[:most])
        return TargetExamples(self.X[chosen], self.y[chosen], self.rows[chosen])


@dataclass(frozen=True)
class Subject:
    """A trained model under attack. `trainer` trains models of its own kind, for shadow models where that makes sense;
    `reference` trains models without privacy, which is what somebody with data of the same source would compare with.

    `epsilon` is what it claims for a record added or removed; None where it claims nothing.
    """

    name: str
    kind: Kind
    method: str
    model: Scorer
    trainer: Trainer
    reference: NonprivateTrainer
    members: TargetExamples
    outsiders: TargetExamples
    data: PublicData
    records: Records
    config: Config | BaselineConfig
    epsilon: float | None
    delta: float
    config_dir: Path = Path()


def subject_of(run: Run, data: PublicData, private: PrivateData) -> Subject:
    """What the run has released, ready to be attacked; `data` and `private` are the run's own.

    Refused in one line: a run without a student or a model, data without private records or labelled test examples,
    other data than the run was made with.
    """
    from pate.voters import voters_of

    config = run.config
    try:
        report = run.report
    except PateError as error:
        text = f"{run.place}: is no finished run; an audit attacks what was published ({error.text()})"
        raise RunError(text) from None
    if isinstance(config, Config):
        voters = voters_of(config)
        data, method = voters.order_public(data), voters.described
    else:
        name = config.baseline.name
        method = {"dp_sgd": "DP-SGD", "dp_erm": "DP-ERM", "dp_erm_tuned": "DP-ERM, tuned"}.get(name, name)
    members = _members(run, data, private)
    if data.X_test is None or data.y_test is None or not len(data.X_test):
        raise DataError(
            f"{run.place}: there are no labelled test examples, which an audit takes as records outside; add data.test"
        )
    if report.student.test_digest not in (None, data.test_digest()):
        raise _other_data(run)
    try:
        chosen = config.student if isinstance(config, Config) else config.baseline
        predictor = run.predictor(dotted_names(chosen.model_dump()))
    except PateError as error:
        raise RunError(f"{run.place}: has no student or model to attack ({error.text()})") from None
    folder = run.places[1] if is_own(run) else Path()  # no place to import from, where somebody else names it
    records, reference, privacy = records_of(private), _nonprivate_trainer(config, data, folder), report.privacy
    scorer = Fitted.of_baseline if "baseline" in predictor.card else Fitted
    return Subject(
        name=config.name,
        kind="student" if isinstance(config, Config) else "baseline",
        method=method,
        model=scorer(predictor.model, data.n_classes),
        trainer=reference if isinstance(config, Config) else Baseline.of(config, data, len(records), folder),
        reference=reference,
        members=members,
        outsiders=TargetExamples(data.X_test, data.y_test, np.arange(len(data.X_test))),
        data=data,
        records=records,
        config=config,
        epsilon=privacy.epsilon if privacy.epsilon_added_or_removed is None else privacy.epsilon_added_or_removed,
        delta=privacy.delta,
        config_dir=run.places[1],
    )


def without_privacy(of: Subject, records: int, seed: int = 0) -> Subject:
    """The model that the same records would give without privacy, trained here on `records` of them at most.

    Records that it was not trained on are no members of it.
    """
    trainer, members = of.reference, of.members.some(records, seed)
    return replace(
        of,
        name="without privacy",
        kind="without privacy",
        method=trainer.description,
        model=trainer.train(members.X, members.y, seed),
        trainer=trainer,
        members=members,
        epsilon=None,
    )


def control(of: Subject, records: int, seed: int = 0) -> Subject:
    """A model that has seen neither members nor outsiders: of public examples, with the labels that `of` gives them.

    Whoever tells members from outsiders by it goes by a difference between the two groups, not by a leak.
    """
    X = of.data.X_public[np.random.default_rng(seed).permutation(len(of.data.X_public))[:records]]
    return replace(
        of,
        name="control",
        kind="without privacy",
        method=f"{of.reference.description} of public examples: never saw the records",
        model=of.reference.train(X, of.model.predict(X), seed),
        trainer=of.reference,
        epsilon=None,
    )


def data_of(run: Run, data_dir: Path | None = None) -> tuple[PublicData, PrivateData]:
    """The run's data, public and private, read again from where the run found it, or from `data_dir`."""
    from pate.data._sources import load
    from pate.voters import voters_of

    config = run.config
    known, config_dir = run.places
    if config.data.source == "arrays":
        raise RunError(
            f"{run.place}: its data was given from Python; audit it there: pate.audit.runner.audit(public=…, private=…)"
        )
    try:
        if isinstance(config, Config):
            return voters_of(config).load(data_dir or known, config_dir, by_workers=False)
        return load(config.data, data_dir or known, config_dir)
    except DataError as error:
        raise DataError(
            f"{run.place}: its private data is not at hand ({error.text()}); name its folder with {{data_dir}}",
            data_dir=None,
        ).privately(error.private) from None


def _nonprivate_trainer(config: Config | BaselineConfig, data: PublicData, folder: Path) -> NonprivateTrainer:
    """The config's own `nonprivate` model, else a network with one hidden layer of 64."""
    from pate.teachers import Recipe, recipe_of

    chosen = config.nonprivate
    if chosen is None:
        shared = {"architecture": "mlp", "hidden": 64, "steps": 600, "batch_size": 64}
        return NonprivateTrainer(Recipe("network", shared, key="nonprivate"), data.n_classes)
    plain = Recipe(chosen.name, dict(chosen.params), key="nonprivate")
    recipe = recipe_of(chosen, "nonprivate") if isinstance(chosen, Model) else plain
    return NonprivateTrainer(recipe, data.n_classes, folder)


def _members(run: Run, data: PublicData, private: PrivateData) -> TargetExamples:
    """The private records that the run has learned from: without those it forgot, and of a person one if that is all
    that counted."""
    if not isinstance(private, Records):
        raise DataError(f"{run.place}: its private records are read by workers or are votes; an audit needs them here")
    kept = private
    if Version.of(run).pending is not None:
        raise RunError(f"{run.place}: a `pate forget` was interrupted there; run it again, then audit")
    if isinstance(run.config, Config):
        from pate.followup import drop_forgotten

        try:
            kept = records_of(drop_forgotten(data, private, run))
        except DataError:
            raise _other_data(run) from None
    X, y = kept.X, kept.y
    counted = np.isfinite(X).reshape(len(X), -1).all(axis=1)
    if isinstance(run.config, BaselineConfig):
        counted &= one_record_per_person(kept, data.n_classes, run.key)
    numbers = np.flatnonzero(counted)
    return TargetExamples(X[numbers], y[numbers], numbers)


def _other_data(run: Run) -> DataError:
    return DataError(
        f"{run.place}: was made with other data than is at hand; name its folder with {{data_dir}}", data_dir=None
    )


# Models as attacks see them
#
# A model gives a probability for each of all classes. Whoever gives none is asked for decision values, which rise with
# them; who gives neither, for labels.


class Scorer(Protocol):
    """A trained model."""

    def predict(self, X: NDArray) -> NDArray[np.int64]:
        """The class of each example, as a position in the list of classes."""

    def predict_proba(self, X: NDArray) -> Probabilities:
        """float[examples, classes]."""


class Trainer(Protocol):
    """Trains models of one kind; can be sent to another process."""

    @property
    def description(self) -> str:
        """What is trained, for people; equal for equal kinds."""

    def train(self, X: NDArray, y: NDArray[np.int64], seed: int) -> Scorer:
        """A model of these examples alone, the same for the same seed where the kind allows that."""


@dataclass(frozen=True)
class Fitted:
    """Any classifier of this package or scikit-learn's as a `Scorer` of `n_classes`."""

    model: Any
    n_classes: int
    flat: bool = False
    """Whether the model takes no images."""

    @classmethod
    def of_baseline(cls, model: Any, n_classes: int) -> Fitted:
        """A baseline's model; it says whether it takes images."""
        return cls(model, n_classes, not getattr(model, "accepts_images", False))

    def predict(self, X: NDArray) -> NDArray[np.int64]:
        return np.asarray(self.model.predict(self._shaped(X))).astype(np.int64).reshape(-1)

    def predict_proba(self, X: NDArray) -> Probabilities:
        shares = _shares(self.model, self._shaped(X))
        if shares is None:
            return np.eye(self.n_classes)[self.predict(X)]
        return _spread(shares, getattr(self.model, "classes_", np.arange(shares.shape[1])), self.n_classes)

    def _shaped(self, X: NDArray) -> NDArray:
        return X.reshape(len(X), -1) if self.flat else X


def _spread(shares: Probabilities, classes: NDArray, n_classes: int) -> Probabilities:
    """Probabilities of all classes from those of some."""
    spread = np.zeros((len(shares), n_classes))
    spread[:, np.asarray(classes).astype(np.int64)] = shares
    return spread


def _shares(model: Any, X: NDArray) -> Probabilities | None:
    """Probabilities of the model's own classes, made of decision values where it has no others."""
    model = getattr(model, "best_", model)  # of several candidates
    adapter = getattr(model, "classifier_", None)  # of a student that is any classifier
    inner = getattr(adapter, "estimator", None)
    if adapter is not None and inner is not None and not hasattr(inner, "predict_proba"):
        X = model.prepared_.transform(X) if model.preprocessing and len(X) else X
        return _from_decisions(inner, adapter.shaped(X))
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict_proba(X), dtype=np.float64)
    return _from_decisions(model, X)


def _from_decisions(estimator: Any, X: NDArray) -> Probabilities | None:
    """Softmax of decision values; None where there are none, or one for each pair of classes."""
    if not hasattr(estimator, "decision_function"):
        return None
    values = np.asarray(estimator.decision_function(X), dtype=np.float64)
    if values.ndim == 1:
        values = np.stack([-values / 2, values / 2], axis=1)
    if values.shape[1] != len(estimator.classes_):
        return None
    values = np.exp(values - values.max(axis=1, keepdims=True))
    return values / values.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class NonprivateTrainer:
    """Trains a classifier that a config would name, with its public features, on all examples together."""

    recipe: Recipe
    n_classes: int
    folder: Path = field(default=Path(), repr=False, compare=False)
    """Where classes of the user's own are: the run that is attacked beside may have others of these names."""

    @property
    def description(self) -> str:
        given = ", ".join(f"{key}={value}" for key, value in self.recipe.params.items())
        before = "".join(f"{step['name']}, " for step in self.recipe.features)
        return f"{before}{self.recipe.name.rpartition('.')[2]}({given})"

    def train(self, X: NDArray, y: NDArray[np.int64], seed: int) -> Scorer:
        from pate.networks._process import one_thread
        from pate.teachers import PartClassifier

        make_importable(self.folder)
        features = self.recipe.build_features()
        with one_thread():
            adapter = PartClassifier(self.recipe.estimator(seed)).fit(features.transform(X), y)
        return _Prepared(features, adapter, self.n_classes)


@dataclass(frozen=True)
class _Prepared:
    """Public features and a classifier behind them, with its labels as they were before it re-coded them."""

    features: Any
    adapter: Any
    n_classes: int

    def predict(self, X: NDArray) -> NDArray[np.int64]:
        return np.asarray(self.adapter.predict(self.features.transform(X)), dtype=np.int64)

    def predict_proba(self, X: NDArray) -> Probabilities:
        present, estimator, shares = self.adapter.present_, self.adapter.estimator, None
        if len(present) >= 2:
            shares = _shares(estimator, self.adapter.shaped(self.features.transform(X)))
        return np.eye(self.n_classes)[self.predict(X)] if shares is None else _spread(shares, present, self.n_classes)


@dataclass(frozen=True)
class Baseline:
    """Trains a baseline with the budget of its config, and noise of its own.

    Shadow models have fewer examples than the `n_records` it is for: their lots are the same share of them, so that
    they take as many steps.
    """

    name: str
    n_classes: int
    epsilon: float | None
    delta: float
    params: dict[str, Any] = field(default_factory=dict)
    X_public: NDArray | None = field(default=None, repr=False, compare=False)
    n_records: int | None = None
    folder: Path = field(default=Path(), repr=False, compare=False)
    """The folder of the config, as a `NonprivateTrainer` has it."""

    @classmethod
    def of(cls, config: BaselineConfig, data: PublicData, n_records: int, folder: Path) -> Baseline:
        """The config's own baseline; `n_records` where the config does not say how many there are."""
        chosen, budget = config.baseline, config.budget
        n_records = n_records if config.records is None else config.records
        given = budget.epsilon, budget.delta, dict(chosen.params), data.X_public, n_records, folder
        return cls(chosen.name, data.n_classes, *given)

    @property
    def description(self) -> str:
        return f"{self.name} with ε = {self.epsilon:g}" if self.epsilon is not None else self.name

    def build(self, n_records: int | None, seed: int) -> Any:
        """The model for so many records, not fitted."""
        from pate.baselines import build_baseline

        make_importable(self.folder)
        params = dict(self.params)
        if "lot_size" in params and n_records is not None and self.n_records not in (None, n_records):
            params["lot_size"] = max(1, round(params["lot_size"] * n_records / self.n_records))
        given = {"epsilon": self.epsilon, "delta": self.delta, "n_records": n_records, "random_state": seed}
        return build_baseline(self.name, params, given | {"classes": range(self.n_classes)})

    def train(self, X: NDArray, y: NDArray[np.int64], seed: int) -> Scorer:
        model = self.build(len(X), seed)
        with warnings.catch_warnings(action="ignore"):  # about the choice of parameters, told when the run began
            if hasattr(model, "plan"):
                model.fit(X, y, X_public=self.X_public)
            else:
                model.fit(X.reshape(len(X), -1), y)
        return Fitted.of_baseline(model, self.n_classes)
