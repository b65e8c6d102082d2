"""Further students of labels that a run has released and paid for: nothing is asked, nothing charged, ε stays.

A student sees released labels and public examples alone. So any number of them may be tried, compared by their
agreement with released labels that they were not taught, and published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pate.cluster._session import joined
from pate.components._registry import also_trust, dotted_names, importing_only
from pate.config import Config
from pate.config._loading import overridden
from pate.data.private import PrivateData, clip_to_public_range
from pate.data.public import PublicData
from pate.errors import ConfigError, PateError, RunError
from pate.followup._unlearning import drop_forgotten
from pate.preflight._features import with_learned_features
from pate.preflight._student import try_student
from pate.report._measures import measure
from pate.report.schema import Student
from pate.runs._console import Console
from pate.runs._files import STUDENT_CARD
from pate.runs._published import pin_to_json
from pate.runs._signatures import is_signed, own_or_trusted
from pate.runs.model_store import load_card, load_model, save_model
from pate.runs.run import Run
from pate.storage._files import make_folder
from pate.students._held_out import HeldOut, held_out, student_name
from pate.students._posterior import Labelled
from pate.students._stage import fit_student, mention_stored_labels, model_card
from pate.voters import voters_of


@dataclass(frozen=True)
class ExtraStudent:
    """A student of the run's labels: its name, where it is stored, and what it says about labels it was not taught.

    `test` are its figures on test examples: None where there are none with labels, or its files may not be loaded.
    """

    name: str
    folder: Path
    settings: dict[str, Any]
    agreement: HeldOut | None
    own: bool
    test: Student | None = None


@dataclass(frozen=True)
class Trials:
    """The run's own student and all further ones, best first; ε and δ of every one of them.

    Best is who agrees most with held-out labels where every class counts the same: else, with a rare class, a student
    that never names it would win.
    """

    students: tuple[ExtraStudent, ...]
    epsilon: float
    delta: float

    @property
    def best(self) -> ExtraStudent | None:
        """The one that agrees most, class by class; None where there are too few held-out labels to tell."""
        return self.students[0] if self.students and self.students[0].agreement is not None else None

    def as_good(self) -> tuple[ExtraStudent, ...]:
        """Students whose distance to the best is not more than chance explains."""
        best = self.best
        if best is None or best.agreement is None:
            return ()
        others = [one for one in self.students[1:] if one.agreement is not None]
        return tuple(one for one in others if not best.agreement.is_better_than(one.agreement))  # type: ignore[arg-type]


def train_extra_student(
    place: Path | str,
    overrides: Sequence[str] = (),
    *,
    student: Mapping[str, Any] | None = None,
    data_dir: Path | None = None,
    address: str | None = None,
    trust: Sequence[str] = (),
    console: Console | None = None,
    public: PublicData | None = None,
    private: PrivateData | None = None,
) -> Trials:
    """Train the student that the run's config describes with `overrides` (`student.…=value`), store it below
    `students/`, and compare it with the run's own and with all that were tried before.

    `student` is a whole section, as in a config, in place of the run's. `public` and `private` are the run's data,
    where it is in memory; else it is read from where the run found it. `address` is a Ray cluster whose GPUs train
    networks.
    `trust` names what a run may import ("module.Class") that was not made by this user.
    """
    console = console or Console()
    with Run.load(place) as found, own_or_trusted(trust, found):
        known_data_dir, config_dir = found.places
        config = found.config
        if not isinstance(config, Config):
            raise RunError(f"{place}: is a run of `pate baseline`, which has no labels for a student")
        wanted = _with_student(config, overrides, student)
        also_trust(dotted_names(wanted.student.model_dump()))  # the run's own are by now, and these the user names
        with Run.create(place, config, resume=True) as run:
            if public is None or private is None:
                unread = getattr(config.data, "sharded", False)
                public, private = voters_of(config).load(data_dir or known_data_dir, config_dir, unread)
            data, private = clip_to_public_range(public, private)
            drop_forgotten(data, private, run)  # refuses other data than the run's
            labels, labelled, data = _released(run, data)
            wanted = with_learned_features(wanted, data.X_public)
            is_new = wanted.student != config.student
            if is_new:
                try_student(wanted, data, may_decline=True)
            in_cluster = joined(address, config.ray) if config.backend == "ray" else nullcontext()
            with mention_stored_labels("the student", place), in_cluster:
                if is_new:
                    held_out(wanted, data, labels, labelled, run, console)
                    _train_and_store(wanted, data, labels, labelled, run, console)
                return _compared(config, data, labels, labelled, run, console, trust)


def _with_student(config: Config, overrides: Sequence[str], student: Mapping[str, Any] | None = None) -> Config:
    """The config with another student; only keys of the student may differ."""
    for text in overrides:
        if text.partition("=")[0].split(".")[0] != "student":
            raise ConfigError(
                "{overrides}: only the student may differ, as in student.name=mixmatch; what was released stays",
                overrides=text,
            )
    section = dict(config.student.model_dump(mode="json") if student is None else student)
    named = [text.partition("=")[2] for text in overrides if text.startswith("student.name=")]
    if named and named[-1] != section.get("name"):
        section = {"name": named[-1]}  # another kind has parameters of its own
    params = section.get("params") or {}
    estimators = [text.partition("=")[2] for text in overrides if text.startswith("student.params.estimator=")]
    if estimators and estimators[-1] != params.get("estimator"):
        section["params"] = {key: value for key, value in params.items() if key != "params"}  # likewise
    return overridden(config, {"student": section}, overrides)


def _train_and_store(
    config: Config, data: PublicData, labels: Any, labelled: Labelled | None, run: Run, console: Console
) -> None:
    """Train a student on all labels and store it, unless that was done before."""
    folder = run.students_folder / student_name(config)
    if (folder / STUDENT_CARD).exists():
        return
    student = fit_student(config, data.X_public, labels, labelled, len(data.classes), run.student_checkpoint, console)
    published = run.labels
    assert published is not None
    card = model_card(config, data, voters_of(config).publishable_epsilon(data.n_classes))
    card |= {"ledger": pin_to_json(published.pin), "settings": config.student.model_dump(mode="json")}
    make_folder(folder.parent)
    save_model(student, folder, card, run)
    run.sync()


def _compared(
    config: Config,
    data: PublicData,
    labels: Any,
    labelled: Labelled | None,
    run: Run,
    console: Console,
    trust: Sequence[str],
) -> Trials:
    """The run's own student and every further one, best first."""

    def tried(other: Config, folder: Path, own: bool) -> ExtraStudent:
        agreement = held_out(other, data, labels, labelled, run, console)
        name, test = student_name(other), None
        if data.X_test is not None and data.y_test is not None:
            with suppress(PateError), console.working("asking the student about test examples"):
                test = measure(name, load_model(folder, run=run), data)[0]
        return ExtraStudent(name, folder, other.student.model_dump(mode="json"), agreement, own, test)

    found = [tried(config, run.student_folder, own=True)]
    for card in sorted(run.students_folder.glob(f"*/{STUDENT_CARD}")):
        settings = load_card(card.parent).get("settings")
        if isinstance(settings, dict):
            with nullcontext() if is_signed(run, card.parent) else importing_only(trust):
                found.append(tried(overridden(config, {"student": settings}, ()), card.parent, own=False))
    unique = {one.name: one for one in reversed(found)}  # the run's own, where it was tried before it became that
    order = sorted(unique.values(), key=lambda one: -(one.agreement.balanced if one.agreement else -1.0))
    run.sync()
    return Trials(tuple(order), voters_of(config).publishable_epsilon(data.n_classes), config.budget.delta)


def _released(run: Run, data: PublicData) -> tuple[Any, Labelled | None, PublicData]:
    """Labels as the run's own student was given them, and the data with the examples that have them first."""
    published = run.labels
    if published is None:
        raise RunError(f"{run.place}: has released no labels yet; go on with it, or name a run that has")
    places = published.places(data)
    if published.weights is not None:
        return published.labels, Labelled(places, published.labels, published.weights, published.cells), data
    return published.labels, None, data.with_queries_first(places)
