"""The stage that trains the student, and tries it on held-out labels, where there are no test labels.

It works on public data and released labels alone, outside the trust boundary.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.cluster._metrics import show
from pate.cluster._remote_task import RemoteTask, gpu_on_cluster, on_gpu
from pate.components._registry import dotted_names
from pate.config import Config
from pate.data.public import PublicData
from pate.errors import ConfigError, NotTrusted, PateError, RunError, first_line
from pate.mechanisms import UNANSWERED
from pate.networks._process import one_thread
from pate.runs import _files as files
from pate.runs._console import Console, Quiet
from pate.runs._run_ledger import Labels, pin_to_json, write_labels
from pate.runs._signatures import read_model_files
from pate.runs.model_store import data_card, load_model, model_from_files, save_model
from pate.runs.run import Run
from pate.storage._files import make_folder, write_arrays
from pate.students._neural import equal_examples
from pate.students._posterior import Labelled

_MIN_WEIGHT = 0.005  # labels that count for less are not worth an example of their own
FOLDS = 3
_FEWEST = 9  # groups of labels that are held out: with fewer, no share means anything

if TYPE_CHECKING:
    from pate.networks._training import Progress
    from pate.runs.context import RunContext
    from pate.voters.base import Release


def train_student(context: RunContext, release: Release) -> Any:
    """The saved student, trained unless it is there already, with ε and the ledger's head on its card.

    One that was given as an object in memory is not saved.
    """
    config, data, directory, console = context.config, context.public, context.run, context.console
    labels, labelled, head = release.labels, release.labelled, release.head
    places = np.arange(len(labels)) if labelled is None else labelled.rows
    rows = places if data.public_rows is None else data.public_rows[places]
    weights, cells = (None, None) if labelled is None else (labelled.weights, labelled.cells)
    write_labels(directory.labels_file, Labels(labels, rows, head, weights, cells), data.classes)
    if len(labels) == 0:
        raise RunError(
            "no cell has a majority of neighbours.min_vote_share, so no public example has a label to learn from. What "
            "was released is paid for and kept; a new run with a lower share or less noise adds to this one's ε"
        )
    if (labels == UNANSWERED).all():
        raise RunError(
            f"none of the {len(labels)} queries was answered, so there is nothing to learn from: lower "
            "mechanism.threshold or use teachers that agree more, in a new run whose ε adds to this one's"
        )
    if directory.student_card.exists():
        try:
            return directory.student(trust=dotted_names(config.student.model_dump()))
        except PateError as error:
            console.info(f"the stored student is trained again, since it cannot be used as it is: {error}")
    checkpoint = directory.student_checkpoint
    student = fit_student(config, data.X_public, labels, labelled, data.n_classes, checkpoint, console)
    if config.student.prototype is not None:  # an object in memory: nothing but a name can be stored
        return student
    card = model_card(config, data, context.epsilon) | {"ledger": pin_to_json(head)}
    save_model(student, directory.student_folder, card, directory)
    return student


def model_card(config: Config, data: PublicData, epsilon: float) -> dict[str, Any]:
    """What is stored beside a student: what it takes, what its answers mean, and what it cost."""
    cost = {"epsilon": epsilon, "delta": config.budget.delta, "mechanism": dict(config.mechanism)}
    return data_card(data) | cost


Given = tuple[tuple[NDArray, NDArray[np.int64], NDArray], dict[str, Any]]
"""What a student is fitted to: labelled examples, labels and unlabelled examples, and what goes by name."""


def split_labelled(X_public: NDArray, labels: NDArray[np.int64]) -> Given:
    """The first public examples with their labels, and the others without."""
    return (X_public[: len(labels)], labels, X_public[len(labels) :]), {}


def split_weighted(X_public: NDArray, labelled: Labelled) -> Given:
    """Some public examples with labels and weights, perhaps several each, and the others without."""
    others = np.setdiff1d(np.arange(len(X_public)), labelled.rows)
    counts = labelled.weights >= _MIN_WEIGHT
    given = X_public[labelled.rows[counts]], labelled.labels[counts], X_public[others]
    return given, {"sample_weight": labelled.weights[counts]}


def student_inputs(config: Config, X_public: NDArray, console: Console) -> NDArray:
    """Public examples after the student's own transforms, which see them once, whatever is learned from them."""
    student = new_student(config)
    if not getattr(student, "preprocessing", None):
        return X_public
    with console.working("working out what the student sees"):
        seen: NDArray = student.transforms().transform(X_public)
    return seen


def fit_student(
    config: Config,
    X_public: NDArray,
    labels: NDArray[np.int64],
    labelled: Labelled | None,
    n_classes: int,
    checkpoint: Path,
    console: Console,
) -> Any:
    """The student that `config` describes, of the labels of public examples: of the first ones, or as `labelled` says.

    With `neighbours.refine`, the last of so many further students, each of them told by the one before which examples
    of a cell have which share of its classes.
    """
    seen = student_inputs(config, X_public, console)
    bare = fit_bare_student(config, seen, labels, labelled, n_classes, checkpoint, console)
    student = new_student(config)
    return student.learned_by(bare) if getattr(student, "preprocessing", None) else bare


def fit_bare_student(
    config: Config,
    seen: NDArray,
    labels: NDArray[np.int64],
    labelled: Labelled | None,
    n_classes: int,
    checkpoint: Path,
    console: Console,
) -> Any:
    """A student, without its transforms, of the labels of the examples that it has `seen` (see `student_inputs`)."""
    given = split_labelled(seen, labels) if labelled is None else split_weighted(seen, labelled)
    times = 1 + config.refinements
    guesses = np.zeros((len(seen), n_classes))
    for number in range(1, times + 1):
        student = new_student(config)
        student = student.bare() if getattr(student, "preprocessing", None) else student
        _fit(student, given, checkpoint, console, number, times)
        if number < times:
            assert labelled is not None  # where records voted
            guesses[:, student.classes_] = student.predict_proba(seen)
            given = split_weighted(seen, labelled.refined(guesses))
    return student


def _fit(student: Any, given: Given, checkpoint: Path, console: Console, number: int = 1, times: int = 1) -> None:
    """Train on what is given, for the `number`th of so many `times`; a network goes on from its checkpoint."""
    examples, further = given
    what = "training the student" + (f", {number} of {times}" if times > 1 else "")
    if "checkpoint" not in signature(student.fit).parameters:
        show(student_step=0, student_steps=1)
        with console.working(what), one_thread():
            student.fit(*examples, **further)
        show(student_step=1)
        return
    show(student_step=0, student_steps=student.steps)
    with console.track(what, student.steps) as update:

        def progress(now: Progress) -> None:
            update(now.step, f"loss {now.loss:.3f}, unlabelled {now.unlabelled_loss:.4f}")
            show(student_step=now.step)

        if hasattr(student, "restore") and gpu_on_cluster(student.device):
            from pate.networks._training import STATE

            task = RemoteTask("the student", fit_remotely, (student, given), checkpoint / STATE)
            student.restore(*on_gpu(task, progress, console))
        else:
            student.fit(*examples, progress=progress, checkpoint=checkpoint, **further)
    shutil.rmtree(checkpoint, ignore_errors=True)
    if getattr(student, "fell_back_", None):
        console.info(f"note: {student.fell_back_}")


def fit_remotely(student: Any, given: Given, *, kept: Path, progress: Callable[..., None]) -> tuple[Any, Any]:
    """What a student has learned, without the device that it learned on: public data and released labels came in."""
    examples, further = given
    student.fit(*examples, progress=progress, checkpoint=kept.parent, **further)
    return student.weights(), student.learned()


@contextmanager
def mention_stored_labels(what: str, out: Path | str) -> Iterator[None]:
    """Turn a failure after the labels were released into a RunError that says that they are kept."""
    try:
        yield
    except (RunError, OSError, NotTrusted):
        raise
    except Exception as error:
        raise RunError(
            f"{what} failed ({type(error).__name__}: {first_line(error)}). The labels are paid for and kept in {out}: "
            "go on with {resume} when that is mended, or with another student in the config; it costs nothing more",
            resume=True,
        ) from error


def fit_intermediate_student(config: Config, given: Given, folder: Path, console: Console) -> Any:
    """The student of a round whose features the next one uses; kept, so that a resumed run has the same."""
    trust = dotted_names(config.student.model_dump())
    if (folder / files.STUDENT_CARD).exists():
        return load_model(folder, trust)
    student = new_student(config)
    require_learned_features(student, config)
    _fit(student, given, folder.with_suffix(".checkpoint"), console)
    make_folder(folder.parent, 0o700)
    save_model(student, folder, {})
    return student


def require_learned_features(student: Any, config: Config) -> None:
    """Raise ConfigError where a student has learned no features that cells could be made in."""
    if not callable(getattr(student, "features", None)):
        raise ConfigError(
            f"teacher_rounds.features = 'student': {config.student.name!r} learns no features; use "
            "mixmatch or gan as student"
        )


def new_student(config: Config) -> Any:
    """The student that `config` names, untrained."""
    from pate.students import build_student

    params, prototype = dict(config.student.params), config.student.prototype
    if prototype is not None:
        params["estimator"] = prototype
    return build_student(config.student.name, params, config.seed)


@dataclass(frozen=True)
class StudentFeatures:
    """A transform: what the last layer of a stored network student sees of each example.

    It goes to workers as the student's files, card and safetensors, and is loaded where it is first used: no live
    network is pickled. The student has learned from released labels and public examples alone: so these features are
    public.
    """

    files: dict[str, bytes]

    @classmethod
    def of(cls, folder: Path) -> StudentFeatures:
        """The features of the student that was saved in `folder`."""
        return cls(read_model_files(folder))

    def transform(self, X: NDArray) -> NDArray:
        """The features of each example, from that example alone."""
        return self._student.features(X)

    @cached_property
    def _student(self) -> Any:
        return model_from_files(self.files, "the student between rounds", frozenset())

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files}


@dataclass(frozen=True)
class HeldOut:
    """What students said about each label that they were not taught, beside the label and how much it counts."""

    predicted: NDArray[np.int64]
    labels: NDArray[np.int64]
    weights: NDArray[np.float64]
    groups: NDArray[np.int64]

    @property
    def share(self) -> float:
        """The share of the labels, by weight, that they agree with."""
        return float((self.weights * self._right).sum() / self.weights.sum())

    @property
    def error(self) -> float:
        """The standard error of `share`, group by group."""
        return self._error_of(self._right - self.share)

    @property
    def balanced(self) -> float:
        """The mean over classes of the share of their labels."""
        shares = [
            (self.weights * self._right)[own].sum() / self.weights[own].sum()
            for own in (self.labels == label for label in np.unique(self.labels))
            if self.weights[own].sum() > 0
        ]
        return float(np.mean(shares))

    @property
    def commonest(self) -> float:
        """The share that always saying the commonest label would agree with."""
        return float(np.bincount(self.labels, self.weights).max() / self.weights.sum())

    def is_better_than(self, other: HeldOut) -> bool:
        """Whether the lead in `balanced` over another student on the same labels is more than two standard errors."""
        ahead, even = self._right.astype(np.float64) - other._right, self._even
        mean = float((even * ahead).sum() / even.sum())
        return mean > 2 * replace(self, weights=even)._error_of(ahead - mean)

    @property
    def _even(self) -> NDArray[np.float64]:
        """Weights with which every class counts the same."""
        of_class = np.bincount(self.labels, self.weights)
        return self.weights / np.maximum(of_class, 1e-300)[self.labels]

    @property
    def _right(self) -> NDArray[np.bool_]:
        return self.predicted == self.labels

    def _error_of(self, residuals: NDArray) -> float:
        sums = np.bincount(self.groups, self.weights * residuals)
        return float(np.sqrt((sums**2).sum()) / self.weights.sum())


def student_name(config: Config) -> str:
    """A name for a student: what it is, and a digest of all that makes it differ from others.

    >>> from pate.config import load_config
    >>> student_name(load_config(None, ["student={name: supervised, params: {estimator: sklearn.svm.SVC}}"]))[:4]
    'SVC-'
    """
    given = config.student
    kind = str(given.params.get("estimator", given.name) if given.name == "supervised" else given.name)
    content = json.dumps([given.model_dump(mode="json"), config.seed, config.refinements], sort_keys=True, default=str)
    short = re.sub(r"[^A-Za-z0-9_-]", "", kind.rpartition(".")[2])[:40] or "student"
    return f"{short}-{blake2b(content.encode(), digest_size=4).hexdigest()}"


def held_out(
    config: Config,
    data: PublicData,
    labels: NDArray[np.int64],
    labelled: Labelled | None,
    run: Run,
    console: Console,
    tries: int = FOLDS,
) -> HeldOut | None:
    """Agreement of students taught all but a third of the labels with that third, for the first `tries` thirds.

    None where there are too few labels.

    `labels` and `labelled` as for `fit_student`. What was found is kept, and not computed again. All labels are
    released, so it costs no privacy. Labels that are wrong lower the agreement of all students alike. Labels of one
    cell, or of examples that are equal, were given together: they are held out together, and count as one.
    """
    places = np.arange(len(labels)) if labelled is None else labelled.rows
    counts = labels != UNANSWERED if labelled is None else labelled.weights > 0
    groups = _groups(data.X_public[places], None if labelled is None else labelled.cells)
    fold = np.random.default_rng(config.seed).permutation(groups.max(initial=-1) + 1)[groups] % FOLDS
    if len(np.unique(groups[counts])) < _FEWEST:
        return None
    path = run.held_out_folder / f"{student_name(config)}-{tries}.npz"
    predicted = np.zeros(0, dtype=np.int64)
    with suppress(Exception), np.load(path, allow_pickle=False) as archive:  # one that is damaged is computed again
        predicted = archive["predicted"]
    if predicted.shape != (len(labels),):
        seen = student_inputs(config, data.X_public, console)
        predicted = np.full(len(labels), UNANSWERED, dtype=np.int64)
        with console.track("students without a third of the labels", tries) as update:
            for number in range(tries):
                back = fold == number
                rest = None if labelled is None else labelled.only(~back)
                taught = np.where(back, UNANSWERED, labels) if rest is None else rest.labels
                student = fit_bare_student(
                    config, seen, taught, rest, len(data.classes), run.student_checkpoint, Quiet()
                )
                predicted[back] = student.predict(seen[places[back]])
                update(number + 1)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        write_arrays(path, {"predicted": predicted})
    weights = np.ones(len(labels)) if labelled is None else labelled.weights
    counts &= predicted != UNANSWERED
    return HeldOut(predicted[counts], labels[counts], weights[counts], groups[counts])


def held_out_unless_tested(context: RunContext, release: Release) -> HeldOut | None:
    """Agreement with held-out labels, where there are no test labels to tell how good the student is."""
    config, public = context.config, context.public
    if public.X_test is not None and public.y_test is not None:
        return None
    tries = count_run_tries(config)
    return held_out(config, public, release.labels, release.labelled, context.run, context.console, tries)


def count_run_tries(config: Config) -> int:
    """How many thirds a run itself holds out: one where a student takes many steps of training, else all."""
    return 1 if hasattr(new_student(config), "steps") else FOLDS


def _groups(X: NDArray, cells: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """The number of the group of each label: its cell, or its example."""
    if cells is not None:
        return np.unique(cells, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return equal_examples(X)
