"""Everything that comes before a run's directory is made: what the config names is built and tried on public data.

Nothing is said until all of it has worked, so a mistake is one line.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from pate.cluster.connect import check_address, joins
from pate.cluster.metrics import set_stage
from pate.cluster.session import check_workers
from pate.config import Config
from pate.data.dataset import Dataset, Records
from pate.data.groups import groupings
from pate.data.sources import load, read_by_workers
from pate.errors import ConfigError
from pate.mechanisms import Mechanism
from pate.planning.budget import publishable_epsilon, shared_ledger
from pate.preflight.learned_features import learns_features, with_learned_features
from pate.preflight.missing_values import check_missing_values
from pate.preflight.rehearsal import rehearse
from pate.preflight.sizes import check_sizes
from pate.preflight.trials import check_components, try_everything
from pate.runs.console import Console
from pate.runs.related import Related, related_runs
from pate.runs.run import Resume, Run

_WORTH_TELLING = 5.0  # seconds


@dataclass(frozen=True)
class Prepared:
    """A run that may begin: its config as `given` and with features learned from public examples, and its data."""

    given: Config
    config: Config
    mechanism: Mechanism
    data: Dataset
    epsilon: float
    student_seconds: float
    seconds: float
    related: Related | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    private_notes: tuple[str, ...]

    def announce(self, console: Console) -> None:
        """Say what is begun and what it will cost, and whatever else the operator should know."""
        for note in self.notes:
            console.info(f"note: {note}")
        for warning in self.warnings:
            console.info(f"WARNING: {warning}")
        for note in self.private_notes:
            (console.info if self.data.benchmark else console.info_private)(note)
        console.info(announcement(self.config, self.mechanism, self.epsilon, self.data.per_person))
        if self.student_seconds >= _WORTH_TELLING:
            console.info(f"the student will take about {self.student_seconds:.0f} s, once there are labels")


def prepare(
    config: Config,
    out: Path | str,
    *,
    data_dir: Path | None,
    config_dir: Path,
    address: str | None,
    resume: Resume,
    force: bool,
    console: Console,
    data: Dataset | None = None,
    pages: bool = True,
) -> Prepared:
    """Raise where the run could not be begun or would fail later; the arguments are those of `pate.pipeline.run`."""
    mechanism = config.build_mechanism()
    Run.check(out, config, resume)
    check_components(config, config_dir)
    on_ray, by_records = config.backend == "ray", config.voters == "neighbours"
    if address is not None and not on_ray:
        raise ConfigError("{address}: backend: local trains in this process; leave out one of the two", address=address)
    if on_ray:
        check_address(address)
        check_workers(address, config.ray)
    by_workers = on_ray and read_by_workers(config.data, joins(address))
    data = data or load(config.data, data_dir, config_dir, by_workers, by_records)
    data = in_asking_order(data.within_public_range(), config)
    groupings(data, config.groups)
    if not by_records:
        data.refuse_missing()
    shared = shared_ledger(config, out, config_dir)
    private_notes: list[str] = []
    try:
        check_sizes(config, data, force, private_notes.append)
    except ConfigError:
        for note in private_notes:  # what the error must not say
            (console.info if data.benchmark else console.info_private)(note)
        raise
    private_notes += data.unused
    private_notes += data.private.notes if isinstance(data.private, Records) else ()
    epsilon = publishable_epsilon(config, mechanism, len(data.classes))
    joint = None if shared is None else shared.budget()
    related = related_runs(config, out, data_dir, config_dir, epsilon, config.budget.delta, joint)
    notes = [*data.notes, *([related.note] if related is not None and related.note else [])]
    if config.nonprivate is not None and not data.benchmark:
        notes.append("nonprivate: left out, since its accuracy would tell of private records; it is for benchmarks")
    started = time.perf_counter()
    set_stage("try")
    with console.working("learning features from public examples") if learns_features(config) else nullcontext():
        learned = with_learned_features(config, data.X_public)
    with console.trying("trying the student and the report on public examples"):
        check_missing_values(learned, data)
        student_seconds = try_everything(learned, data, mechanism, epsilon, pages)
        rehearsal = rehearse(learned, data, student_seconds) if resume is not True else None
    warnings = list(data.warnings)
    if rehearsal is not None:
        (notes if rehearsal.tells_classes_apart else warnings).append(str(rehearsal))
    return Prepared(
        given=config,
        config=learned,
        mechanism=mechanism,
        data=data,
        epsilon=epsilon,
        student_seconds=student_seconds,
        seconds=time.perf_counter() - started,
        related=related,
        notes=tuple(notes),
        warnings=tuple(warnings),
        private_notes=tuple(private_notes),
    )


def in_asking_order(data: Dataset, config: Config) -> Dataset:
    """The examples that are asked about come first among the public ones."""
    if config.budget.query_selection != "clusters":
        return data
    from pate.data.query_clusters import by_clusters

    return data.reordered(by_clusters(data.X_public, config.budget.max_queries, config.seed))


def announcement(config: Config, mechanism: Mechanism, epsilon: float, per_person: bool) -> str:
    """What a run asks of whom, and what that costs."""
    budget = config.budget
    told = f"ε to publish: {epsilon:.3g} at δ = {budget.delta:g}, fixed now and true for every data set."
    if config.voters == "neighbours":
        assert config.neighbours is not None
        rounds = ", ".join(f"{round.cells} cells by {round.mechanism}" for round in config.build_rounds())
        votes = "one vote" if config.neighbours.votes_per_record == 1 else f"{config.neighbours.votes_per_record} votes"
        whose = getattr(config.data, "id", None) or ("person" if per_person else "record")
        each = " in each round" if len(config.build_rounds()) > 1 else ""
        return f"{config.name}: {votes} per {whose}{each}: {rounds}. {told}"
    answered = f", at most {budget.answer_limit} answered" if mechanism.may_decline else ""
    rounds = (
        f" in rounds of {' and '.join(str(one.queries) for one in config.teacher_rounds)}"
        if config.teacher_rounds
        else ""
    )
    asked = f"{budget.max_queries} queries{rounds}{answered}"
    return f"{config.name}: {config.n_teachers} teachers, {mechanism}, {asked}. {told}"
