"""What is attacked: a model that a finished run released, with the data that only the owner of the records has.

Members are the private records of the run. Outsiders are its test examples: records of the same source that no part of
the run has learned from. Public examples are neither: a student has seen them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pate.audit.learners import Baseline, Fitted, NonprivateTrainer, Probabilities, Scorer, Trainer
from pate.components.registry import dotted_names
from pate.config import BaselineConfig, Config
from pate.data.partition import one_record_per_person
from pate.data.private import PrivateData, Records, records_of
from pate.data.public import PublicData
from pate.errors import DataError, PateError, RunError
from pate.runs.run import Run, Version

Kind = Literal["student", "baseline", "without privacy"]


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

    @property
    def benchmark(self) -> bool:
        """Whether public data plays private, so that figures about it may be shown."""
        return self.data.benchmark

    @property
    def n_classes(self) -> int:
        return len(self.data.classes)

    def predict(self, X: NDArray) -> NDArray[np.int64]:
        return self.model.predict(X)

    def predict_proba(self, X: NDArray) -> Probabilities:
        return self.model.predict_proba(X)


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
    records, reference, privacy = records_of(private), _nonprivate_trainer(config, data), report.privacy
    scorer = Fitted.of_baseline if "baseline" in predictor.card else Fitted
    return Subject(
        name=config.name,
        kind="student" if isinstance(config, Config) else "baseline",
        method=method,
        model=scorer(predictor.model, data.n_classes),
        trainer=reference if isinstance(config, Config) else Baseline.of(config, data, len(records)),
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
    labels = of.predict(X)
    return replace(
        of,
        name="control",
        kind="without privacy",
        method=f"{of.reference.description} of public examples: never saw the records",
        model=of.reference.train(X, labels, seed),
        trainer=of.reference,
        epsilon=None,
    )


def data_of(run: Run, data_dir: Path | None = None) -> tuple[PublicData, PrivateData]:
    """The run's data, public and private, read again from where the run found it, or from `data_dir`."""
    from pate.data.sources import load
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


def _nonprivate_trainer(config: Config | BaselineConfig, data: PublicData) -> NonprivateTrainer:
    """The config's own `nonprivate` model, else a network with one hidden layer of 64."""
    chosen, n_classes = config.nonprivate, len(data.classes)
    if chosen is None:
        shared = {"architecture": "mlp", "hidden": 64, "steps": 600, "batch_size": 64}
        return NonprivateTrainer("network", n_classes, shared)
    steps = getattr(chosen, "features", ())
    return NonprivateTrainer(chosen.name, n_classes, dict(chosen.params), tuple(step.model_dump() for step in steps))


def _members(run: Run, data: PublicData, private: PrivateData) -> TargetExamples:
    """The private records that the run has learned from: without those it forgot, and of a person one if that is all
    that counted."""
    if not isinstance(private, Records):
        raise DataError(f"{run.place}: its private records are read by workers or are votes; an audit needs them here")
    version, kept = Version.of(run), private
    if version.pending is not None:
        raise RunError(f"{run.place}: a `pate forget` was interrupted there; run it again, then audit")
    if isinstance(run.config, Config):
        from pate.followup.unlearning import drop_forgotten

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
