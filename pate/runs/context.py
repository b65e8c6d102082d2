"""What every stage of a run shares. Nothing in it is private: private data goes beside it, to whom it concerns."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate.runs import _files as files
from pate.runs._console import Console

if TYPE_CHECKING:
    from pate.data.private import PrivateData
    from pate.data.public import PublicData
    from pate.ledger import SharedBudget
    from pate.report.schema import Report
    from pate.runs._related import Related
    from pate.runs.run import Resume, Run
    from pate.students._held_out import HeldOut
    from pate.voters.base import Voters


@dataclass(frozen=True)
class RunOptions:
    """How a run is made; none of it changes what the run releases.

    Parameters
    ----------
    data_dir : Path, default=None
        The folder of the data files; else that of $PATE_DATA, else beside the config.
    config_dir : Path, default=Path()
        The folder of the config, where other files that it names are.
    address : str, default=None
        A Ray cluster to join.
    resume : bool or "auto", default=False
        Whether to go on with a run that is in `out`; "auto" also begins one where there is none.
    force : bool, default=False
        Whether to train even where parts are too small to learn from.
    anchor : str, default=None
        A file or URL where the ledger's links are also kept; None is the user's own, "none" is nowhere.
    trust : sequence of str, default=()
        May name `private/teachers`: then teachers are used that the run has stored on another machine, or somebody
        else in it, which may run their code.
    pages : bool, default=True
        Whether pages, plots, curves and the private data-dependent ε are made, which are for people to look at.
    feature_cache : Path, default=None
        A private folder where runs on the same data share the public features of records.
    n_jobs : int, default=None
        With `backend: local`, how many processes train teachers; negative as joblib counts them.
    evaluate_teachers : bool, default=False
        On a benchmark, whether to note how often teachers and their plurality are right. That is private.
    """

    data_dir: Path | None = None
    config_dir: Path = Path()
    address: str | None = None
    resume: Resume = False
    force: bool = False
    anchor: str | None = None
    trust: Sequence[str] = ()
    pages: bool = True
    feature_cache: Path | None = None
    n_jobs: int | None = None
    evaluate_teachers: bool = False


@dataclass
class Notes:
    """What the operator should know before a run begins."""

    public: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    private: list[str] = field(default_factory=list)


class StageClock:
    """How many seconds each stage of a run takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time within as that of the stage `name`."""
        from pate.cluster._metrics import set_stage

        started = time.perf_counter()
        set_stage(name)
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


@contextmanager
def begin_run(out: Path | str, given: Any, options: RunOptions) -> Iterator[Run]:
    """The run directory `out` of the config `given`, new or resumed, and locked; it knows where its data is."""
    from pate.data._sources import data_root
    from pate.runs._signatures import sign
    from pate.runs.run import Run

    with Run.create(out, given, options.resume) as run:
        root = data_root(options.data_dir)
        places = {"data_dir": root and str(root.resolve()), "config_dir": str(options.config_dir.resolve())}
        run.note(files.PLACES, places)
        sign(run, run.config_file, run.places_file)
        yield run


_LONG = 5.0  # seconds: a student that takes longer is announced


@dataclass(frozen=True)
class Outcome:
    """A finished run: what it may publish, where it is, and for the operator how many seconds its stages took.

    `private_figures` are there of benchmarks alone: how often teachers are right.
    """

    report: Report
    path: Path | str
    seconds: dict[str, float]
    private_figures: dict[str, Any] = field(default_factory=dict)
    student: Any = field(default=None, repr=False)

    def _repr_html_(self) -> str:
        """What a notebook shows: publishable figures alone, since notebooks are passed on."""
        from pate.report._files import summary_rows

        rows = summary_rows(self.report)
        cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
        return f"<table>{cells}</table><p>{escape(str(self.path))}</p>"


@dataclass
class RunContext:
    """A run on its way: what it is asked for, its public data, where it writes, whom it informs and how long it takes.

    Parameters
    ----------
    given : RunConfig
        The config as the user wrote it; the run directory is known by it.
    out : Path or str
        The run directory, or a URL.
    options : RunOptions
        How the run is made.
    console : Console
        Progress and messages.
    public : PublicData
        Public examples, classes, test set.
    """

    given: Any
    out: Path | str
    options: RunOptions
    console: Console
    public: PublicData
    clock: StageClock = field(default_factory=StageClock)
    notes: Notes = field(default_factory=Notes)
    config: Any = None
    """The config with features that were learned from public examples."""
    epsilon: float = 0.0
    student_seconds: float = 0.0
    related: Related | None = None
    agreement: HeldOut | None = None
    """Agreement with released labels that were held out, where there are no test labels."""
    is_anchored: bool = False
    _run: Run | None = None

    def __post_init__(self) -> None:
        if self.config is None:
            self.config = self.given

    @property
    def voters(self) -> Voters[Any]:
        """Who votes, by the config."""
        from pate.voters import voters_of

        return voters_of(self.config)

    @property
    def run(self) -> Run:
        """The run directory, which there is from the end of preflight on."""
        assert self._run is not None
        return self._run

    @run.setter
    def run(self, directory: Run) -> None:
        self._run = directory

    def info_operator(self, text: str) -> None:
        """Inform whoever may know the private data; of a benchmark, everybody."""
        (self.console.info if self.public.benchmark else self.console.info_private)(text)

    def find_related(self, epsilon: float, delta: float, joint: SharedBudget | None = None) -> None:
        """Note other runs on the same private data, and what all of them cost together with this one's (ε, δ)."""
        from pate.runs._related import related_runs

        where = self.out, self.options.data_dir, self.options.config_dir
        self.related = related_runs(self.given, *where, epsilon, delta, joint)
        if self.related is not None and self.related.note:
            self.notes.public.append(self.related.note)

    def note_data(self, private: PrivateData) -> None:
        """Note what the operator should know about the data."""
        self.notes.private += private.notes
        self.notes.public += self.public.notes
        self.notes.warnings += self.public.warnings

    def announce(self, what: str, delta: float) -> None:
        """Say what preflight has noted, and that `what` is about to begin."""
        for note in self.notes.public:
            self.console.info(f"note: {note}")
        for warning in self.notes.warnings:
            self.console.info(f"WARNING: {warning}")
        self.announce_private()
        self.console.info(
            f"{self.config.name}: {what}. ε to publish: {self.epsilon:.3g} at δ = {delta:g}, fixed now and true for "
            "every data set."
        )
        if self.student_seconds >= _LONG:
            self.console.info(f"the student will take about {self.student_seconds:.0f} s, once there are labels")

    def announce_private(self) -> None:
        """Say to the operator alone what preflight has noted about private data."""
        for note in self.notes.private:
            self.info_operator(note)
