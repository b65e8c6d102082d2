"""The algorithm, top to bottom: partition, train, label, learn, report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate import __version__
from pate.asking import ask, ask_in_rounds, get
from pate.boundary import WorkerLost
from pate.cluster.metrics import Metrics
from pate.config import Config, Model
from pate.console import Console
from pate.data.dataset import Dataset
from pate.data.sources import data_root, load
from pate.ensemble.checkpoints import TeacherFiles
from pate.errors import BudgetExceeded, ConfigError, RunError
from pate.forget import remembered
from pate.ledger import Charge, Ledger
from pate.ledger.chain import Pin
from pate.mechanisms import UNANSWERED, Mechanism, MSamp
from pate.naming import make_importable
from pate.networks.threads import one_thread
from pate.planning.budget import ledger_opener, publishable_epsilon, shared_ledger
from pate.report.explanations import privacy_statement
from pate.report.figures import (
    confusion_of,
    data_name,
    publishable_curves,
    save_examples,
    software,
    teacher_kinds,
)
from pate.report.schema import Benchmark, Privacy, Queries, Report, Sanitised, Student
from pate.report.writing import EXAMPLES, store_report, write_pages
from pate.runs.published import read_labels
from pate.runs.run import RunDirectory
from pate.students.stage import labels_are_kept, new_student, train_student
from pate.trying import try_everything

Tell = Callable[[str], None]  # for what only those may hear who may know the private data

_RECORDS_TO_LEARN_FROM = 10
_FEWEST_RECORDS = 5
_VOTE_ATTEMPTS = 3
_SECONDS_BETWEEN_COPIES = 10.0


@dataclass(frozen=True)
class Outcome:
    """A finished run: what it may publish, where it is, and how long its stages took (for the operator)."""

    report: Report
    path: Path | str
    seconds: dict[str, float]
    private_figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Released:
    """What came out of the trust boundary, stored and paid for; `rows` are the public examples asked about."""

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    spent: Charge
    sanitised: dict[str, Any] | None
    head: Pin


def run(
    config: Config,
    out: Path | str,
    *,
    data_dir: Path | None = None,
    config_dir: Path = Path(),
    address: str | None = None,
    resume: bool = False,
    force: bool = False,
    anchor: str | None = None,
    console: Console | None = None,
    data: Dataset | None = None,
) -> Outcome:
    """Run PATE as `config` says, in the directory or at the URL `out`; finished stages are not done again.

    `anchor` is a file or URL where the ledger's links are kept besides. `data` is the config's data where it was loaded
    before, perhaps with votes that were counted before.
    """
    console = console or Console()
    mechanism = config.build_mechanism()
    _check_components(config, config_dir)
    data = in_asking_order(data or load(config.data, data_dir, config_dir, by_workers=True), config)
    shared_ledger(config, out, config_dir)
    tell = console.say if data.benchmark else console.say_privately
    _check_sizes(config, data, force, tell)
    epsilon = publishable_epsilon(config, mechanism, len(data.classes))
    _announce(config, mechanism, epsilon, console)
    seconds: dict[str, float] = {}
    with _stage("try", seconds), console.working("trying the student and the report on public examples"):
        try_everything(config, data, mechanism, epsilon)
    with RunDirectory.open(out, config, resume) as directory:
        data = remembered(data, directory)
        directory.note("places.json", {"data_dir": _absolute(data_root(data_dir)), "config_dir": _absolute(config_dir)})
        open_ledger = ledger_opener(config, mechanism, directory, config_dir, directory.anchored(anchor))
        released = _release_labels(
            config, mechanism, data, directory, open_ledger, address, config_dir, force, seconds, epsilon, console
        )
        data = data.asked_first(released.rows)
        with _stage("student", seconds), labels_are_kept("the student", out):
            student = train_student(config, data, released.labels, directory, epsilon, released.head, console)
        directory.publish()
        with labels_are_kept("the report", out):
            report = _report(config, data, mechanism, released, epsilon, student, seconds, console)
            directory.note("seconds.json", seconds)
            save_examples(directory.path / EXAMPLES, data, released.labels)
            store_report(directory.path, report)
            with console.working("drawing the report"):
                write_pages(directory.path)
        directory.publish()
        return Outcome(report, out, seconds, _private_figures(directory) if data.benchmark else {})


def _check_components(config: Config, config_dir: Path) -> None:
    """Import and construct everything the config names, before a directory is made for it."""
    from pate.teachers import recipe_of, recipes

    make_importable(config_dir)
    kinds = recipes(config.teachers)
    for recipe in kinds + ([recipe_of(config.nonprivate, "nonprivate")] if config.nonprivate else []):
        recipe.estimator(config.seed)
        recipe.build_features()
    new_student(config)


def in_asking_order(data: Dataset, config: Config) -> Dataset:
    """The examples that are asked about come first among the public ones."""
    if config.budget.order != "clusters":
        return data
    from pate.data.order import by_clusters

    return data.reordered(by_clusters(data.X_public, config.budget.asked, config.seed))


def _check_sizes(config: Config, data: Dataset, force: bool, tell: Tell) -> None:
    if config.budget.asked > len(data.X_public):
        raise ConfigError(f"budget.asked = {config.budget.asked}: there are only {len(data.X_public)} public examples")
    if data.votes is not None:
        voters = int(data.votes[0].sum())
        if voters != config.n_teachers:
            raise ConfigError(f"n_teachers = {config.n_teachers}: the stored votes are those of {voters} teachers")
        return
    if data.shards is None:
        _check_records(config, len(data.X_private), len(data.classes), force, tell)


def _check_records(config: Config, n_records: int, n_classes: int, force: bool, tell: Tell) -> None:
    """Refuse parts that are too small. How many records there are is told to those who may know, not in the error."""
    mechanism = config.build_mechanism()
    share = mechanism.sampling_rate if isinstance(mechanism, MSamp) else 1 / config.n_teachers
    each = share * n_records
    if each < _FEWEST_RECORDS and not force:
        enough = n_records / 4 / _FEWEST_RECORDS
        tell(f"about {each:.1g} private records per teacher; about {enough:.1g} teachers would have enough")
        raise ConfigError(
            f"n_teachers = {config.n_teachers}: parts of the private records would be too small to learn from; use "
            "fewer teachers, or add --force"
        )
    if each < max(_RECORDS_TO_LEARN_FROM, n_classes):
        tell(f"parts of about {each:.2g} records are small for {n_classes} classes")


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
    open_ledger: Callable[[], Ledger],
    address: str | None,
    config_dir: Path,
    force: bool,
    seconds: dict[str, float],
    epsilon: float,
    console: Console,
) -> Released:
    """Everything inside the trust boundary: what comes back is paid for and stored."""
    from pate.aggregator import InProcess, StoredVotes, aggregator_actor, votes_collected
    from pate.cluster.session import ray_session

    adaptive = config.budget.adaptive
    queries = data.X_public if adaptive else data.X_public[: config.budget.asked]  # those that may be asked about
    with ExitStack() as stack:
        arguments: dict[str, Any] = {
            "mechanism": mechanism,
            "open_ledger": open_ledger,
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
        metrics = Metrics(config.name)
        metrics.show(epsilon=epsilon)
        published = read_labels(directory.labels)
        if published is not None:
            get(aggregator.must_have_told.remote(published.examples(data), published.labels))
        if not get(aggregator.spent.remote()).asked and not get(aggregator.room.remote()):
            raise BudgetExceeded("no query fits into the budget any more: other runs on the same data have used it up")
        answered = not adaptive and get(aggregator.stored_prefix.remote(queries)) == len(queries)
        if not answered and not votes_collected(queries, directory.private, directory.key):
            if data.votes is not None:
                stored = StoredVotes(data.votes[: len(queries)], config.n_teachers)
                get(aggregator.collect.remote(queries, stored))
            else:
                _train_and_vote(
                    config, data, queries, aggregator, directory, config_dir, force, seconds, metrics, console
                )
        directory.publish()
        with _stage("label", seconds):
            if adaptive:
                rows, labels = ask_in_rounds(
                    queries, config, lambda X: ask(aggregator, X, metrics, console), directory, console
                )
                queries = queries[rows]
            else:
                rows, labels = np.arange(len(queries)), ask(aggregator, queries, metrics, console)
            spent = get(aggregator.spent.remote())
        with _stage("account", seconds), console.working("accounting"):
            get(aggregator.account.remote(queries, config.budget.delta, adaptive))
            sanitised = None
            if config.budget.sanitise is not None:
                sanitised = get(aggregator.sanitise.remote(queries, config.budget.sanitise, config.budget.delta))
                if sanitised is None:
                    console.say("note: no sanitised ε: votes behind some answers were erased by forgetting")
            head = get(aggregator.head.remote())
            get(aggregator.close.remote())
        return Released(rows, labels, spent, sanitised, head)


def _train_and_vote(
    config: Config,
    data: Dataset,
    queries: NDArray,
    aggregator: Any,
    directory: RunDirectory,
    config_dir: Path,
    force: bool,
    seconds: dict[str, float],
    metrics: Metrics,
    console: Console,
) -> None:
    from pate.aggregator import AskWorkers
    from pate.ensemble.pool import Pool
    from pate.ensemble.readers import private_records
    from pate.teachers import assign_recipes, recipes

    with console.working("splitting private records into parts"):
        private = private_records(config, data, directory)
    if private.left_out:
        console.say_privately(f"{private.left_out} records have no valid id and are left out; see docs/data.md")
    tell = console.say if data.benchmark else console.say_privately
    if data.shards is not None:
        _check_records(config, private.n_records, len(data.classes), force, tell)
    kinds = recipes(config.teachers)
    assignment = assign_recipes(kinds, config.n_teachers)
    store = TeacherFiles(directory.private, directory.key)
    with _stage("train", seconds):
        n_classes, search_path = len(data.classes), [str(config_dir.resolve())]
        pool = Pool(kinds, assignment, n_classes, config.seed, config.ray, store, search_path)
        with console.working("trying each kind of teacher on public examples"):
            expected = pool.probe(data.X_public, private.n_records // config.n_teachers)
        if pool.lacks_gpu():
            console.say("note: workers were given GPUs that torch cannot use; networks train on the CPU")
        tell(f"training will take about {expected + 4:.0f} s, the whole run about {1.2 * expected + 12:.0f} s more")
        _train(pool, private, directory, metrics, console)
    with _stage("vote", seconds), console.working("counting votes"):
        for _ in range(_VOTE_ATTEMPTS):
            try:
                voters = AskWorkers(pool.workers)
                get(aggregator.collect.remote(queries, voters))
                if data.benchmark and data.y_public is not None:
                    get(aggregator.evaluate.remote(data.X_public, data.y_public, voters))
                break
            except WorkerLost:
                pool.forget_dead()
                _train(pool, private, directory, metrics, console)
        else:
            raise RunError("teacher workers kept dying while votes were counted; go on with --resume")
        pool.close()
        private.close()
    directory.note("failures.json", {"private": "do not publish", "teachers": store.failures})
    if store.failures:
        console.say_privately(f"{len(store.failures)} teachers failed to train; see private/failures.json")


def _train(pool: Any, private: Any, directory: RunDirectory, metrics: Metrics, console: Console) -> None:
    with console.track("training teachers", private.n_parts) as update:

        def done(count: int) -> None:
            update(count)
            metrics.show(teachers_trained=count)
            directory.publish(at_least_every=_SECONDS_BETWEEN_COPIES)

        pool.train(private.of_part, done)
    directory.publish()


def _report(
    config: Config,
    data: Dataset,
    mechanism: Mechanism,
    released: Released,
    epsilon: float,
    student: Any,
    seconds: dict[str, float],
    console: Console,
) -> Report:
    n_classes = len(data.classes)
    predicted = student.predict(data.X_test) if data.X_test is not None and data.y_test is not None else None
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
                adaptive=config.budget.adaptive,
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
                accuracy=None if predicted is None else float((predicted == data.y_test).mean()),
                test_digest=data.test_digest(),
                confusion=confusion_of(predicted, data.y_test, n_classes),
            ),
            benchmark=_benchmark(config, data, released.labels, console) if data.benchmark else None,
            data=data_name(config.data),
            public_examples=len(data.X_public),
            teachers=teacher_kinds(config),
            curves=publishable_curves(config, mechanism, n_classes),
            versions=software(),
        )


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())


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
    with one_thread():
        classifier = PartClassifier(recipe.estimator(seed))
        classifier.fit(features.transform(data.X_private), data.y_private)
        return float((classifier.predict(features.transform(data.X_test)) == data.y_test).mean())


def _private_figures(directory: RunDirectory) -> dict[str, Any]:
    path = directory.private / "evaluation.json"
    return json.loads(path.read_text()) if path.exists() else {}
