"""The stage that trains the student: from public data and released labels, outside the trust boundary."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
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
from pate.runs._console import Console
from pate.runs._run_ledger import Labels, pin_to_json, write_labels
from pate.runs._signatures import read_model_files
from pate.runs.model_store import data_card, load_model, model_from_files, save_model
from pate.storage._files import make_folder

_MIN_WEIGHT = 0.005  # labels that count for less are not worth an example of their own

if TYPE_CHECKING:
    from pate.networks._training import Progress
    from pate.runs.context import RunContext
    from pate.students._posterior import Labelled
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
