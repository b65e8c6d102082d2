"""PATE from top to bottom, as the paper draws it: prepare, release, learn, report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from pate.baselines import nonprivate_model
from pate.boundary._aggregator import open_aggregator
from pate.cluster._metrics import published_metrics
from pate.cluster._session import check_cluster, joined, joins
from pate.config import Config, load_config
from pate.data._sources import read_by_workers
from pate.data.private import PrivateData, prepare_data
from pate.data.public import PublicData
from pate.errors import ConfigError
from pate.followup import drop_forgotten
from pate.networks._process import waiting_threads
from pate.preflight import check_components, run_checks
from pate.report._builder import report_of_run
from pate.report._files import store_report, write_pages
from pate.report.sections._pipeline import save_examples
from pate.runs import _files as files
from pate.runs._console import Console
from pate.runs._run_ledger import shared_ledger
from pate.runs.context import Outcome, RunContext, RunOptions, begin_run
from pate.runs.run import Run, remove_empty_run
from pate.students._stage import held_out_unless_tested, mention_stored_labels, train_student
from pate.voters import voters_of
from pate.voters.base import Release


@waiting_threads()
def run(
    config: Config | Mapping[str, Any] | Path | str,
    out: Path | str,
    *,
    public: PublicData | None = None,
    private: PrivateData | None = None,
    console: Console | None = None,
    **options: Any,
) -> Outcome:
    """Run PATE as `config` says, in the directory or at the URL `out`; finished stages are not done again.

    Parameters
    ----------
    config : Config, mapping, Path or str
        The settings; or a YAML file, beside which other files are then looked for; or plain values as in such a file.
    out : Path or str
        The run directory, or a URL of one.
    public, private : PublicData and PrivateData, default=None
        The data, where it is in memory; else the config's source is read.
    console : Console, default=None
        Where progress goes; None is standard error.
    **options : RunOptions
        How the run is made: `resume`, `data_dir`, `address` and others.

    Returns
    -------
    Outcome
        The report, the student and where they are.
    """
    console = console or Console()
    context, private = prepare(config, out, public, private, console, RunOptions(**options))
    cluster = joined(context.options.address, context.config.ray) if context.config.backend == "ray" else nullcontext()
    with (
        begin_run(context.out, context.given, context.options) as context.run,
        remove_empty_run(context.run),
        cluster,
        published_metrics(context.run.id, context.config.name, epsilon=context.epsilon, **context.voters.metrics()),
    ):
        context.announce(context.voters.announcement(context.public), context.config.budget.delta)
        private = drop_forgotten(context.public, private, context.run)
        release = release_labels(context, private)
        student = learn(context, release)
        nonprivate = nonprivate_model(context.config.nonprivate, context.public, private, context.config.seed, console)
        return report(context, release, student, nonprivate)


def prepare(
    config: Config | Mapping[str, Any] | Path | str,
    out: Path | str,
    public: PublicData | None,
    private: PrivateData | None,
    console: Console,
    options: RunOptions,
) -> tuple[RunContext, PrivateData]:
    """Read the data, and try on what is public whatever the config names; nothing is begun and nothing charged.

    Nothing is said until all of it has worked, so a mistake is one line.
    """
    if not isinstance(config, Config | Mapping | Path | str):
        raise ConfigError("config: must be a file, values as in one, or a Config; the embedded run is load_config()")
    config = load_config(config)
    if options.config_dir == Path():  # noted in the run: whoever loads its student looks for classes there
        options = replace(options, config_dir=config.folder)
    voters = voters_of(config)
    Run.check(out, config, options.resume)
    check_components(config, options.config_dir)
    check_cluster(config.backend, options.address, config.ray)
    if public is None or private is None:
        by_workers = config.backend == "ray" and read_by_workers(config.data, joins(options.address))
        public, private = voters.load(options.data_dir, options.config_dir, by_workers)
    public, private = prepare_data(public, private, voters.keeps_unusable_records)
    voters.check_public(public)  # before the cost of what could never be asked
    context = RunContext(config, out, options, console, voters.order_public(public))
    try:
        voters.check_private(context, private)
    except ConfigError:
        context.announce_private()  # what the error must not say
        raise
    context.note_data(private)
    context.epsilon = voters.publishable_epsilon(public.n_classes)
    shared = shared_ledger(config, out, options.config_dir)
    context.find_related(context.epsilon, config.budget.delta, None if shared is None else shared.budget())
    with context.clock.stage("try"), console.trying("trying the student and the report on public examples"):
        run_checks(context)
    return context, private


def release_labels(context: RunContext, private: PrivateData) -> Release:
    """Everything inside the trust boundary: what comes back is paid for and stored."""
    voters = context.voters
    with ExitStack() as stack:
        aggregator = open_aggregator(context, stack if voters.needs_cluster(context, private) else None)
        release = voters.release(context, private, aggregator)
        aggregator.close()
    if release.labelled is None:
        context.public = context.public.with_queries_first(release.rows)
    return release


def learn(context: RunContext, release: Release) -> Any:
    """The student: trained on public data and released labels alone."""
    with context.clock.stage("student"), mention_stored_labels("the student", context.out):
        student = train_student(context, release)
        if context.options.pages:
            context.agreement = held_out_unless_tested(context, release)
    context.run.sync()
    return student


def report(context: RunContext, release: Release, student: Any, nonprivate: Callable[[], Any] | None) -> Outcome:
    """The report and its pages, from what is publishable; on a benchmark, with the `nonprivate` model's answers."""
    run, console, clock = context.run, context.console, context.clock
    with mention_stored_labels("the report", context.out):
        with clock.stage("report"):
            found = report_of_run(context, release, student, nonprivate, curves=context.options.pages)
        run.note(files.SECONDS, clock.seconds)
        store_report(run.path, found)
        if context.options.pages:
            save_examples(run.examples_file, context.public, release.labels, release.labelled)
            with console.working("drawing the report"):
                write_pages(run.path)
    run.sync()
    evaluation = run.evaluation_file
    figures = json.loads(evaluation.read_text()) if context.public.benchmark and evaluation.exists() else {}
    return Outcome(found, context.out, clock.seconds, figures, student)
