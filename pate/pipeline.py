"""The algorithm, top to bottom: partition, train, label, learn, report."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate import __version__
from pate.budget import ledger_opener, publishable_epsilon
from pate.checkpoints import TeacherFiles
from pate.config import Component, Config, Model
from pate.console import Console
from pate.data.dataset import Dataset
from pate.data.sources import data_root, load
from pate.errors import BudgetExceeded, ConfigError, PateError, RunError
from pate.files import write_atomically
from pate.forget import parts_of, remembered
from pate.ledger import Charge
from pate.mechanisms import UNANSWERED, Mechanism, MSamp
from pate.naming import make_importable
from pate.report.page import render_page
from pate.report.schema import Benchmark, Privacy, Queries, Report, Sanitised, Student
from pate.report.words import privacy_statement
from pate.run_directory import RunDirectory

if TYPE_CHECKING:
    from pate.networks.training import Progress

BATCH = 50
_RECORDS_TO_LEARN_FROM = 10
_FEWEST_RECORDS = 5
_VOTE_ATTEMPTS = 3


@dataclass(frozen=True)
class Outcome:
    """A finished run: what it may publish, where it is, and how long its stages took (for the operator)."""

    report: Report
    path: Path
    seconds: dict[str, float]
    private_figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Released:
    """What came out of the trust boundary, all of it stored and paid for."""

    labels: NDArray[np.int64]
    spent: Charge
    sanitised: dict[str, Any] | None


def run(
    config: Config,
    out: Path,
    *,
    data_dir: Path | None = None,
    config_dir: Path = Path(),
    address: str | None = None,
    resume: bool = False,
    force: bool = False,
    console: Console | None = None,
    data: Dataset | None = None,
) -> Outcome:
    """Run PATE as `config` says, in the directory `out`; stages already finished there are not done again.

    `data` is the config's data where it was loaded before, perhaps with votes that were counted before.
    """
    console = console or Console()
    mechanism = config.build_mechanism()
    _check_components(config, config_dir)
    data = in_asking_order(data or load(config.data, data_dir, config_dir), config)
    _check_sizes(config, data, force, console)
    epsilon = publishable_epsilon(config, mechanism, len(data.classes))
    _announce(config, mechanism, epsilon, console)
    seconds: dict[str, float] = {}
    with RunDirectory.open(out, config, resume) as directory:
        data = remembered(data, directory)
        directory.note("places.json", {"data_dir": _absolute(data_root(data_dir)), "config_dir": _absolute(config_dir)})
        released = _release_labels(config, mechanism, data, directory, address, config_dir, seconds, console)
        student = _train_student(config, data, released.labels, directory, epsilon, seconds, console)
        report = _report(config, data, released, epsilon, student, seconds, console)
        _write(directory, report, config, seconds)
        return Outcome(report, out, seconds, _private_figures(directory) if data.benchmark else {})


def _check_components(config: Config, config_dir: Path) -> None:
    """Import and construct everything the config names, before a directory is made for it."""
    from pate.teachers import recipe_of, recipes

    make_importable(config_dir)
    kinds = recipes(config.teachers)
    for recipe in kinds + ([recipe_of(config.nonprivate, "nonprivate")] if config.nonprivate else []):
        recipe.estimator(config.seed)
        recipe.build_features()
    _build_student(config.student, config.seed)


def in_asking_order(data: Dataset, config: Config) -> Dataset:
    """The examples that are asked about come first among the public ones."""
    if config.budget.order == "given":
        return data
    from pate.data.order import by_clusters

    return data.reordered(by_clusters(data.X_public, config.budget.asked, config.seed))


def _check_sizes(config: Config, data: Dataset, force: bool, console: Console) -> None:
    if config.budget.asked > len(data.X_public):
        raise ConfigError(f"budget.asked = {config.budget.asked}: there are only {len(data.X_public)} public examples")
    if data.votes is not None:
        voters = int(data.votes[0].sum())
        if voters != config.n_teachers:
            raise ConfigError(f"n_teachers = {config.n_teachers}: the stored votes are those of {voters} teachers")
        return
    mechanism = config.build_mechanism()
    share = mechanism.sampling_rate if isinstance(mechanism, MSamp) else 1 / config.n_teachers
    each = share * len(data.X_private)
    if each < _FEWEST_RECORDS and not force:
        raise ConfigError(
            f"n_teachers = {config.n_teachers}: that is about {each:.1g} private records a teacher, too few to learn "
            f"from; use about {len(data.X_private) / 4 / _FEWEST_RECORDS:.1g} teachers, or add --force"
        )
    if each < max(_RECORDS_TO_LEARN_FROM, len(data.classes)):
        console.say(f"note: parts of about {each:.2g} records are small for {len(data.classes)} classes")


def _announce(config: Config, mechanism: Mechanism, epsilon: float, console: Console) -> None:
    budget = config.budget
    answered = f", at most {budget.most_answered} answered" if mechanism.may_decline else ""
    console.say(
        f"{config.name}: {config.n_teachers} teachers, {mechanism}, {budget.asked} queries{answered}. "
        f"ε to publish: {epsilon:.3g} at δ = {budget.delta:g}, fixed now and true for every data set."
    )


@contextmanager
def _stage(name: str, seconds: dict[str, float]) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - started


def _release_labels(
    config: Config,
    mechanism: Mechanism,
    data: Dataset,
    directory: RunDirectory,
    address: str | None,
    config_dir: Path,
    seconds: dict[str, float],
    console: Console,
) -> Released:
    """Everything inside the trust boundary: what comes back is paid for and stored."""
    from pate.aggregator import InProcess, StoredVotes, aggregator_actor, votes_collected
    from pate.ray_session import ray_session

    queries = data.X_public[: config.budget.asked]
    with ExitStack() as stack:
        arguments: dict[str, Any] = {
            "mechanism": mechanism,
            "open_ledger": ledger_opener(config, mechanism, directory),
            "private": directory.private.resolve(),
            "key": directory.key,
            "n_teachers": config.n_teachers,
        }
        if data.votes is not None:
            aggregator: Any = InProcess(**arguments)
        else:
            with _stage("start", seconds), console.working("starting Ray"):
                stack.enter_context(ray_session(address, config.ray))
                name = f"aggregator-{blake2b(directory.key, digest_size=8).hexdigest()}"
                aggregator = aggregator_actor(name, **arguments)
        if not _get(aggregator.stored_prefix.remote(queries[:1])) and not _get(aggregator.room.remote()):
            raise BudgetExceeded("no query fits into the budget any more: other runs on the same data have used it up")
        answered = _get(aggregator.stored_prefix.remote(queries)) == len(queries)
        if not answered and not votes_collected(queries, directory.private, directory.key):
            if data.votes is not None:
                stored = StoredVotes(data.votes[: len(queries)], config.n_teachers)
                _get(aggregator.collect.remote(queries, stored))
            else:
                _train_and_vote(config, data, queries, aggregator, directory, config_dir, seconds, console)
        with _stage("label", seconds):
            labels, spent = _ask(aggregator, queries, console), _get(aggregator.spent.remote())
        with _stage("account", seconds), console.working("accounting"):
            _get(aggregator.account.remote(queries, config.budget.delta))
            sanitised = None
            if config.budget.sanitise is not None:
                sanitised = _get(aggregator.sanitise.remote(queries, config.budget.sanitise, config.budget.delta))
                if sanitised is None:
                    console.say("note: no sanitised ε: votes behind some answers were erased by forgetting")
            _get(aggregator.close.remote())
        return Released(labels, spent, sanitised)


def _train_and_vote(
    config: Config,
    data: Dataset,
    queries: NDArray,
    aggregator: Any,
    directory: RunDirectory,
    config_dir: Path,
    seconds: dict[str, float],
    console: Console,
) -> None:
    from pate.aggregator import AskWorkers
    from pate.pool import Pool
    from pate.teachers import assign_recipes, recipes

    parts = parts_of(config, data, directory.key)
    kinds = recipes(config.teachers)
    assignment = assign_recipes(kinds, config.n_teachers)
    store = TeacherFiles(directory.private, directory.key)
    with _stage("train", seconds):
        n_classes, search_path = len(data.classes), [str(config_dir.resolve())]
        pool = Pool(kinds, assignment, n_classes, config.seed, config.ray, store, search_path)
        with console.working("trying each kind of teacher on public examples"):
            expected = pool.probe(data.X_public, len(data.X_private) // config.n_teachers)
        if pool.lacks_gpu():
            console.say("note: workers were given GPUs that torch cannot use; networks train on the CPU")
        console.say(
            f"training will take about {expected + 4:.0f} s, the whole run about {1.2 * expected + 12:.0f} s more"
        )
        _train(pool, data, parts, console)
    with _stage("vote", seconds), console.working("counting votes"):
        for _ in range(_VOTE_ATTEMPTS):
            try:
                ask = AskWorkers(pool.workers)
                _get(aggregator.collect.remote(queries, ask))
                if data.benchmark and data.y_public is not None:
                    _get(aggregator.evaluate.remote(data.X_public, data.y_public, ask))
                break
            except _WorkerLost:
                pool.forget_dead()
                _train(pool, data, parts, console)
        else:
            raise RunError("teacher workers kept dying while votes were counted; go on with --resume")
        pool.close()
    directory.note("failures.json", {"private": "do not publish", "teachers": store.failures})
    if store.failures:
        console.say_privately(f"{len(store.failures)} teachers failed to train; see private/failures.json")


def _train(pool: Any, data: Dataset, parts: list[NDArray[np.int64]], console: Console) -> None:
    with console.track("training teachers", len(parts)) as update:
        pool.train(lambda part: (data.X_private[parts[part]], data.y_private[parts[part]]), update)


def _ask(aggregator: Any, queries: NDArray, console: Console) -> NDArray[np.int64]:
    """Ask in batches that are sure to fit; a batch shrinks where the limit on answers comes near.

    Examples that were never asked, because the limit on answers was reached, count as unanswered.
    """
    labels = np.full(len(queries), UNANSWERED, dtype=np.int64)
    done = 0
    with console.track("labelling", len(queries)) as update:
        while done < len(queries):
            stored = _get(aggregator.stored_prefix.remote(queries[done:]))
            size = stored or min(BATCH, _get(aggregator.room.remote()), len(queries) - done)
            if size == 0:
                break
            labels[done : done + size] = _get(aggregator.label.remote(queries[done : done + size])).labels
            done += size
            update(done)
    return labels


class _WorkerLost(Exception):
    """A teacher worker died while it was asked for votes."""


def _get(reference: Any) -> Any:
    """`ray.get`, with errors that are fit to show: ours as they are, others by kind only.

    What an aggregator in this process said is there already.
    """
    if "ray" not in sys.modules:
        return reference
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    if not isinstance(reference, ray.ObjectRef):
        return reference

    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, PateError):
            raise error.cause from None
        if isinstance(error.cause, RayActorError):
            raise _WorkerLost from None
        raise RunError(
            f"the aggregator failed ({type(error.cause).__name__}); nothing was released; go on with --resume"
        ) from None
    except RayActorError:
        raise RunError("the aggregator died and could not be restarted; go on with --resume") from None


def _train_student(
    config: Config,
    data: Dataset,
    labels: NDArray[np.int64],
    directory: RunDirectory,
    epsilon: float,
    seconds: dict[str, float],
    console: Console,
) -> Any:
    """A student from public data and released labels; outside the trust boundary."""
    from pate.students.storage import load_student, save_student

    def write_labels(path: Path) -> None:
        with path.open("wb") as file:
            rows = np.arange(len(labels)) if data.public_rows is None else data.public_rows[: len(labels)]
            np.savez(file, labels=labels, rows=rows, classes=np.array(data.classes))

    write_atomically(directory.labels, write_labels, mode=0o644)
    if (labels == UNANSWERED).all():
        raise RunError(
            f"none of the {len(labels)} queries was answered, so there is nothing to learn from: lower "
            "mechanism.threshold or use teachers that agree more, in a new run whose ε adds to this one's"
        )
    if (directory.student / "student.json").exists():
        return load_student(directory.student, trusted=[config.student.name])
    with _stage("student", seconds):
        student = _build_student(config.student, config.seed)
        _fit(student, data.X_public, labels, directory.private / "student_checkpoint", console)
    card = {
        "classes": list(data.classes),
        "input": data.input,
        "shape": list(data.X_public.shape[1:]),
        "features": list(data.features) if data.features is not None else None,
        "epsilon": epsilon,
        "delta": config.budget.delta,
        "mechanism": dict(config.mechanism),
    }
    save_student(student, directory.student, card)
    return student


def _fit(student: Any, X_public: NDArray, labels: NDArray[np.int64], checkpoint: Path, console: Console) -> None:
    """Train on the first public examples, labelled, and on the others; a network goes on from its checkpoint."""
    examples = X_public[: len(labels)], labels, X_public[len(labels) :]
    if "checkpoint" not in signature(student.fit).parameters:
        with console.working("training the student"):
            student.fit(*examples)
        return
    with console.track("training the student", student.steps) as update:

        def progress(now: Progress) -> None:
            update(now.step, f"loss {now.loss:.3f}, unlabelled {now.unlabelled_loss:.4f}")

        student.fit(*examples, progress=progress, checkpoint=checkpoint)
    shutil.rmtree(checkpoint, ignore_errors=True)


def _build_student(component: Component, seed: int) -> Any:
    from pate.students import build_student

    return build_student(component.name, dict(component.params), seed)


def _report(
    config: Config,
    data: Dataset,
    released: Released,
    epsilon: float,
    student: Any,
    seconds: dict[str, float],
    console: Console,
) -> Report:
    tested = data.X_test is not None and data.y_test is not None
    with _stage("report", seconds):
        unit = "record" if data.ids_private is None else "id"
        return Report(
            name=config.name,
            pate_version=__version__,
            config_digest=config.digest(),
            n_teachers=config.n_teachers,
            classes=data.classes,
            mechanism=dict(config.mechanism),
            queries=Queries(
                asked=released.spent.asked,
                answered=released.spent.answered,
                limit_asked=config.budget.asked,
                limit_answered=config.budget.most_answered,
            ),
            privacy=Privacy(
                epsilon=epsilon,
                delta=config.budget.delta,
                unit=unit,  # type: ignore[arg-type]
                statement=privacy_statement(epsilon, config.budget.delta, unit),
                sanitised=None if released.sanitised is None else Sanitised(**released.sanitised),
            ),
            student=Student(
                name=config.student.name,
                test_examples=len(data.X_test) if data.X_test is not None else 0,
                accuracy=_accuracy(student, data) if tested else None,
                test_digest=data.test_digest(),
            ),
            benchmark=_benchmark(config, data, released.labels, console) if data.benchmark else None,
        )


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())


def _accuracy(classifier: Any, data: Dataset) -> float:
    return float((classifier.predict(data.X_test) == data.y_test).mean())


def _benchmark(config: Config, data: Dataset, labels: NDArray[np.int64], console: Console) -> Benchmark:
    """Figures that public data playing private may show."""
    answered = labels != UNANSWERED
    right = labels[answered] == data.y_public[: len(labels)][answered] if data.y_public is not None else None
    nonprivate = None
    if config.nonprivate is not None and data.X_test is not None:
        with console.working("training without privacy, for comparison"):
            nonprivate = nonprivate_accuracy(config.nonprivate, data, config.seed)
    return Benchmark(
        note="Public data plays private here; a run on private data would not show these figures.",
        label_accuracy=None if right is None else float(right.mean()),
        nonprivate_accuracy=nonprivate,
    )


def nonprivate_accuracy(model: Model, data: Dataset, seed: int) -> float:
    """The share of test examples that `model`, trained on all private records together, gets right."""
    assert data.X_test is not None
    from pate.teachers import recipe_of
    from pate.teachers.part import PartClassifier

    recipe = recipe_of(model, "nonprivate")
    features = recipe.build_features()
    classifier = PartClassifier(recipe.estimator(seed))
    classifier.fit(features.transform(data.X_private), data.y_private)
    return float((classifier.predict(features.transform(data.X_test)) == data.y_test).mean())


def _write(directory: RunDirectory, report: Report, config: Config, seconds: dict[str, float]) -> None:
    directory.note("seconds.json", seconds)
    text = report.model_dump_json(indent=2) + "\n"
    write_atomically(directory.path / "report.json", lambda path: path.write_text(text), mode=0o644)
    page = render_page(report, config.to_yaml())
    write_atomically(directory.path / "report.html", lambda path: path.write_text(page), mode=0o644)


def _private_figures(directory: RunDirectory) -> dict[str, Any]:
    path = directory.private / "evaluation.json"
    return json.loads(path.read_text()) if path.exists() else {}
