"""The algorithm, top to bottom: partition, train, label, learn, report."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.boundary.aggregator import Aggregator, AnyAggregator, RemoteAggregator, StoredVotes, votes_collected
from pate.cluster.connect import check_visible
from pate.cluster.metrics import published_metrics, set_stage, show
from pate.cluster.session import joined, ray_session
from pate.config import Config, load_config, parse_config
from pate.data.dataset import Dataset, Shards, Votes
from pate.data.sources import data_root
from pate.errors import BudgetExceeded, ConfigError, RunError
from pate.followup.unlearning import remembered
from pate.ledger import Charge, Ledger
from pate.ledger.chain import Pin
from pate.mechanisms import Mechanism
from pate.networks.threads import waiting_threads
from pate.planning.budget import anchor_of, ledger_opener
from pate.preflight.preparation import prepare
from pate.preflight.sizes import Tell, check_records
from pate.report.builder import report_of_run
from pate.report.figures import save_examples
from pate.report.files import store_report, write_pages
from pate.report.schema import Report
from pate.report.terminal import summary_rows
from pate.runs import files
from pate.runs.cleanup import remove_empty_run
from pate.runs.console import Console
from pate.runs.run import Resume, Run
from pate.runs.signatures import OWN_TEACHERS, seal, user_secret
from pate.students.feature_extractor import StudentFeatures
from pate.students.held_out import HeldOut, count_run_tries, held_out
from pate.students.posterior import Labelled, is_only_noise
from pate.students.stage import (
    fit_intermediate_student,
    mention_stored_labels,
    split_labelled,
    split_weighted,
    train_student,
)
from pate.voters.neighbours.cell_vote import CellVote
from pate.voters.neighbours.vote_counting import open_vote_counter, report_silent_records
from pate.voters.teachers import rounds
from pate.voters.teachers.checkpoints import TeacherFiles
from pate.voters.teachers.query_loop import ask, ask_actively
from pate.voters.teachers.worker import Teaching

_SECONDS_BETWEEN_COPIES = 10.0


@dataclass(frozen=True)
class Outcome:
    """A finished run: what it may publish (its report and its student), where it is, and how long its stages took (for
    the operator)."""

    report: Report
    path: Path | str
    seconds: dict[str, float]
    private_figures: dict[str, Any] = field(default_factory=dict)
    student: Any = field(default=None, repr=False)

    def _repr_html_(self) -> str:
        """What a notebook shows: publishable figures alone, since notebooks are passed on."""
        rows = summary_rows(self.report)
        cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
        return f"<table>{cells}</table><p>{escape(str(self.path))}</p>"


@dataclass(frozen=True)
class Released:
    """What came out of the trust boundary, stored and paid for; `rows` are the public examples asked about.

    Where records voted near public examples, `labelled` says which of those have labels, and how much each counts.
    """

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    spent: Charge
    sanitised: dict[str, Any] | None
    head: Pin
    labelled: Labelled | None = None


@waiting_threads()
def run(
    config: Config | Mapping[str, Any] | Path | str,
    out: Path | str,
    *,
    data_dir: Path | None = None,
    config_dir: Path = Path(),
    address: str | None = None,
    resume: Resume = False,
    force: bool = False,
    anchor: str | None = None,
    trust: Sequence[str] = (),
    console: Console | None = None,
    data: Dataset | None = None,
    pages: bool = True,
    feature_cache: Path | None = None,
    n_jobs: int | None = None,
    evaluate_teachers: bool = False,
) -> Outcome:
    """Run PATE as `config` says, in the directory or at the URL `out`; finished stages are not done again.

    `config` may also be a YAML file, beside which other files are then looked for, or plain values as such a file
    holds. `resume` goes on with a run that is in `out`; "auto" also begins one where there is none. `data_dir` is
    where data files are, `config_dir` the config's own folder, where other files that it names are, and `address` a Ray
    cluster to join. `force` trains even where parts are too small to learn from. `anchor` is a file or URL where the
    ledger's links are also kept; else the user's own is, unless it is "none" (`pate.runs.anchoring`). `trust` may name
    `private/teachers`: then teachers are used that the run has stored on another machine, or somebody else in it, which
    may run their code. `data` is the data, if it is in memory or was loaded before. Without `pages`, what is for people
    to look at is left out: pages, plots, curves and the private data-dependent ε. `feature_cache` is a private folder
    where runs on the same data share the public features of records that vote themselves; else they are kept until the
    votes are counted. With `backend: local`, `n_jobs` processes train teachers (negative: as joblib counts them); the
    votes are the same. `evaluate_teachers`, on a benchmark, also notes how often teachers and their plurality were
    right about the queries: for whoever may see private figures.
    """
    console = console or Console()
    if isinstance(config, Path | str):
        config_dir = Path(config).parent if config_dir == Path() else config_dir
        config = load_config(config)
    elif not isinstance(config, Config):
        config = parse_config(config)
    ready = prepare(
        config,
        out,
        data_dir=data_dir,
        config_dir=config_dir,
        address=address,
        resume=resume,
        force=force,
        console=console,
        data=data,
        pages=pages,
    )
    given, config, mechanism, data, epsilon = ready.given, ready.config, ready.mechanism, ready.data, ready.epsilon
    if evaluate_teachers and not (config.voters == "teachers" and data.benchmark and data.y_public is not None):
        text = "{evaluate_teachers}: is for teachers on a benchmark; how often they are right is private"
        raise ConfigError(text, evaluate_teachers=True)
    seconds = {"try": ready.seconds}
    with (
        Run.create(out, given, resume) as directory,
        remove_empty_run(directory),
        joined(address, config.ray) if config.backend == "ray" else nullcontext(),
        published_metrics(directory.id, config.name, **_figures(config, epsilon)),
    ):
        ready.announce(console)
        data = remembered(data, directory)
        directory.note(files.PLACES, {"data_dir": _absolute(data_root(data_dir)), "config_dir": _absolute(config_dir)})
        seal(directory, directory.config_file, directory.places_file)
        chosen = anchor_of(given, directory, config_dir, anchor, console.info)
        open_ledger = ledger_opener(given, mechanism, directory, config_dir, chosen)
        inside = _Inside(
            config, config_dir, data, directory, force, pages, seconds, console, feature_cache, n_jobs,
            ready.student_seconds, OWN_TEACHERS in trust, evaluate_teachers,
        )  # fmt: skip
        if config.voters == "neighbours":
            released = _release_rounds(inside, mechanism, open_ledger, address)
        else:
            released = _release_labels(inside, mechanism, open_ledger, address)
            data = data.with_queries_first(released.rows)
        with _stage("student", seconds), mention_stored_labels("the student", out):
            student = train_student(
                config, data, released.labels, directory, epsilon, released.head, console, released.labelled
            )
            agreement = _agreement(config, data, released, directory, console) if pages else None
        directory.sync()
        with mention_stored_labels("the report", out):
            with _stage("report", seconds):
                report = report_of_run(
                    config, data, mechanism, released, epsilon, student, pages, console, agreement, ready.related
                )
                report = report.model_copy(update={"anchored": chosen.place is not None})
            directory.note(files.SECONDS, seconds)
            store_report(directory.path, report)
            if pages:
                save_examples(directory.examples_file, data, released.labels, released.labelled)
                with console.working("drawing the report"):
                    write_pages(directory.path)
        directory.sync()
        return Outcome(report, out, seconds, _private_figures(directory) if data.benchmark else {}, student)


def _agreement(config: Config, data: Dataset, released: Released, run: Run, console: Console) -> HeldOut | None:
    """With released labels that were held out, where there are no test labels to tell how good the student is."""
    if data.X_test is not None and data.y_test is not None:
        return None
    return held_out(config, data, released.labels, released.labelled, run, console, count_run_tries(config))


def _figures(config: Config, epsilon: float) -> dict[str, float]:
    """What is seen of a run from its beginning."""
    if config.voters == "neighbours":
        return {"epsilon": epsilon}
    return {
        "epsilon": epsilon,
        "teachers": config.n_teachers,
        "teachers_trained": 0,
        "queries": config.budget.max_queries,
    }


@contextmanager
def _stage(name: str, seconds: dict[str, float]) -> Iterator[None]:
    started = time.perf_counter()
    set_stage(name)
    yield
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - started


@dataclass(frozen=True)
class _Inside:
    """What the stages inside the trust boundary share."""

    config: Config
    config_dir: Path
    data: Dataset
    run: Run
    force: bool
    pages: bool
    seconds: dict[str, float]
    console: Console
    feature_cache: Path | None
    n_jobs: int | None
    student_seconds: float = 0.0
    trusts_teachers: bool = False
    evaluate_teachers: bool = False

    @property
    def tell(self) -> Tell:
        """Says what only people may read who may know the private data; anybody may, of a benchmark."""
        return self.console.info if self.data.benchmark else self.console.info_private


def _release_labels(
    inside: _Inside, mechanism: Mechanism, open_ledger: Callable[[], Ledger], address: str | None
) -> Released:
    """Everything inside the trust boundary: what comes back is paid for and stored."""
    config, data, run, console = inside.config, inside.data, inside.run, inside.console
    adaptive = config.budget.adaptive
    queries = data.X_public if adaptive else data.X_public[: config.budget.max_queries]  # those that may be asked about
    collected = votes_collected(queries, run.private, run.key)
    with ExitStack() as stack:
        aggregator = _aggregator(inside, mechanism, open_ledger, None if collected else stack, address)
        published = run.labels
        if published is not None:
            aggregator.verify_published_labels(published.examples(data), published.labels)
        spent = aggregator.spent()
        show(queries_asked=spent.asked, queries_answered=spent.answered)
        if not spent.asked and not aggregator.room():
            raise BudgetExceeded("no query fits into the budget any more: other runs on the same data have used it up")
        answered = not adaptive and aggregator.stored_prefix(queries) == len(queries)
        if config.teacher_rounds:
            _hold_lessons(inside, queries, aggregator)
        elif not answered and not collected:
            if isinstance(data.private, Votes):
                aggregator.collect(queries, StoredVotes(data.private.counts[: len(queries)], config.n_teachers))
            else:
                _train_and_vote(inside, rounds.teacher_rounds(config)[0], queries, aggregator=aggregator)
        run.sync()
        show(teachers_trained=config.n_teachers, teachers=config.n_teachers)
        with _stage("label", inside.seconds):
            if adaptive:
                rows, labels = ask_actively(queries, config, lambda X: ask(aggregator, X, console), run, console)
                queries = queries[rows]
            else:
                rows, labels = np.arange(len(queries)), ask(aggregator, queries, console)
            spent = aggregator.spent()
        with _stage("account", inside.seconds), console.working("accounting"):
            if inside.pages:
                aggregator.account(queries, config.budget.delta, config.adaptive)
            if inside.evaluate_teachers:
                assert data.y_public is not None
                aggregator.evaluate(data.X_public, data.y_public)
            sanitised = None
            if config.budget.sanitise is not None:
                sanitised = aggregator.sanitise(queries, config.budget.sanitise, config.budget.delta)
                if sanitised is None:
                    console.info("note: no sanitised ε: votes behind some answers were erased by forgetting")
            head = aggregator.head()
            aggregator.close()
        return Released(rows, labels, spent, sanitised, head)


def _release_rounds(
    inside: _Inside, mechanism: Mechanism, open_ledger: Callable[[], Ledger], address: str | None
) -> Released:
    """Release labels where records vote themselves: rounds of cells, each of them one charge."""
    from pate.voters.neighbours.stage import Rounds

    config, data, run, console = inside.config, inside.data, inside.run, inside.console
    assert config.neighbours is not None
    remote = isinstance(data.private, Shards)
    kept = None if remote else inside.feature_cache or run.features_folder
    rounds = Rounds(config.neighbours, config.build_rounds(), config.seed, run.cells_folder, kept)
    with ExitStack() as stack:
        aggregator = _aggregator(inside, mechanism, open_ledger, stack if remote else None, address)
        if not aggregator.spent().asked and not aggregator.room():
            raise BudgetExceeded("no round fits into the budget any more: other runs on the same data have used it up")
        report_silent_records(data, run, console)
        electorate = open_vote_counter(data, run, stack, config.ray)

        def release(name: str, cell_vote: CellVote, by: Mechanism) -> NDArray[np.int64]:
            with _stage("vote", inside.seconds), console.working(name.partition(",")[0]):
                released = aggregator.release_round(name, cell_vote, by, electorate)
            if by.releases_counts and is_only_noise(released, by.noise):  # type: ignore[attr-defined]
                console.info(
                    "warning: what was released is no more than noise: either there is too much of it for so few "
                    "records, or hardly any of them cast a vote; look at data.id, id_type, label, classes, decimal, "
                    "dates and encoding, and at the mechanism's scale"
                )
            return released

        def teach(number: int, labelled: Labelled) -> Any:
            with _stage("label", inside.seconds):
                given = split_weighted(data.X_public, labelled)
                return fit_intermediate_student(config, given, run.round_student(number), console)

        labelled = rounds.run(data.X_public, len(data.classes), release, teach)
        published = run.labels
        if published is not None and not labelled.same_as(published.labels, published.weights):
            raise RunError("labels.npz: differs from what the ledger holds; put back what the run published")
        spent, head = aggregator.spent(), aggregator.head()
        aggregator.close()
        shutil.rmtree(run.features_folder, ignore_errors=True)
        run.sync()
    return Released(labelled.rows, labelled.labels, spent, None, head, labelled)


def _aggregator(
    inside: _Inside,
    mechanism: Mechanism,
    open_ledger: Callable[[], Ledger],
    until_end: ExitStack | None,
    address: str | None,
) -> AnyAggregator:
    """The door to the votes: an actor of a Ray that stays up `until_end`, or in this process where teachers are in it
    too or nobody has to vote any more (None)."""
    arguments: dict[str, Any] = {
        "mechanism": mechanism,
        "open_ledger": open_ledger,
        "private": inside.run.private.resolve(),
        "key": inside.run.key,
        "n_teachers": inside.config.n_teachers,
    }
    if isinstance(inside.data.private, Votes) or inside.config.backend == "local" or until_end is None:
        return Aggregator(**arguments)
    with _stage("start", inside.seconds), inside.console.working("starting Ray"):
        until_end.enter_context(ray_session(address, inside.config.ray))
        check_visible(arguments["private"])
        name = f"aggregator-{blake2b(inside.run.key, digest_size=8).hexdigest()}"
        return RemoteAggregator(name, **arguments)


def _hold_lessons(inside: _Inside, queries: NDArray, aggregator: AnyAggregator) -> None:
    """Train, vote and ask round by round; what is stored of a round is not done again, and all answers are."""
    data, run, console = inside.data, inside.run, inside.console

    def needs_votes(X: NDArray) -> bool:
        stored = aggregator.stored_prefix(X) == len(X) or votes_collected(X, run.private, run.key)
        return not stored and aggregator.room() > 0

    def ask_about(X: NDArray) -> NDArray[np.int64]:
        with _stage("label", inside.seconds):
            labels = ask(aggregator, X, console)
        run.sync()
        return labels

    def seen(number: int, labels: NDArray[np.int64]) -> StudentFeatures:
        folder = run.student_of_round(number)
        with _stage("label", inside.seconds), mention_stored_labels(f"the student of round {number}", run.place):
            fit_intermediate_student(inside.config, split_labelled(data.X_public, labels), folder, console)
        return StudentFeatures.of(folder)

    vote = partial(_train_and_vote, inside, aggregator=aggregator)
    rounds.run_rounds(inside.config, queries, needs_votes, vote, ask_about, seen)


def _train_and_vote(
    inside: _Inside,
    round_: rounds.TeacherRound,
    queries: NDArray,
    first: StudentFeatures | None = None,
    *,
    aggregator: AnyAggregator,
) -> None:
    from pate.voters.teachers.ensemble import Ensemble
    from pate.voters.teachers.readers import private_records

    config, data, run, console = round_.config, inside.data, inside.run, inside.console
    with console.working("splitting private records into parts"):
        records = private_records(config, data, run)
    if records.left_out:
        console.info_private(f"{records.left_out} records have no valid id and are left out; see docs/data.md")
    if isinstance(data.private, Shards):
        check_records(config, records.n_records, len(data.classes), inside.force, inside.tell)
    teaching = Teaching.of(config, len(data.classes), inside.config_dir, first, data.X_public.shape[1:])
    own = user_secret(run.key_file)
    store = TeacherFiles(run.teachers_of_round(round_.number), run.key, round_.number, own, inside.trusts_teachers)
    if store.are_foreign:
        console.info(
            "note: the teachers that are stored there were not trained by you here, and are trained again: reading "
            f"them could run somebody's code. Where that was you, elsewhere, trust {OWN_TEACHERS} to use them"
        )
    settings = config.ray if config.backend == "ray" else None
    with Ensemble(teaching, records, store, settings, console.info, inside.n_jobs) as ensemble:
        with _stage("train", inside.seconds):
            with console.working("trying each kind of teacher on public examples"):
                expected = ensemble.probe(data.X_public)
            whole = 1.2 * expected + 12 + inside.student_seconds
            inside.tell(
                f"training will take about {expected + 4:.0f} s, the whole run about {whole:.0f} s more, of which the "
                f"student {inside.student_seconds:.0f}"
            )
            with console.track("training teachers", config.n_teachers) as update:

                def done(count: int) -> None:
                    update(count)
                    show(teachers_trained=count, teachers=config.n_teachers)
                    run.sync(at_least_every=_SECONDS_BETWEEN_COPIES)

                ensemble.train(done)
            run.sync()
        with _stage("vote", inside.seconds), console.working("counting votes"):
            ensemble.vote(lambda voters: aggregator.collect(queries, voters))
    run.note(files.FAILURES, {"private": "do not publish", "teachers": store.failures})
    if store.failures:
        console.info_private(f"{len(store.failures)} teachers failed to train; see private/failures.json")


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())


def _private_figures(directory: Run) -> dict[str, Any]:
    path = directory.evaluation_file
    return json.loads(path.read_text()) if path.exists() else {}
