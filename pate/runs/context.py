"""What every stage of a run shares. Nothing in it is private: private data goes beside it, to whom it concerns."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate.components._registry import importing_only
from pate.config import BaselineConfig, Config, stored_config
from pate.data._settings import OwnData
from pate.data._sources import data_root
from pate.errors import PateError
from pate.ledger import SharedBudget
from pate.runs import _files as files
from pate.runs._console import Console
from pate.runs._files import RunFiles
from pate.storage import is_url

if TYPE_CHECKING:
    from pate.data.private import PrivateData
    from pate.data.public import PublicData
    from pate.report.schema import RelatedRuns, Report
    from pate.runs.run import Resume, Run
    from pate.students._stage import HeldOut
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
    together: RelatedRuns | None = None
    """What all known runs on the same private data cost."""
    agreement: HeldOut | None = None
    """Agreement with released labels that were held out, where there are no test labels."""
    is_anchored: bool = False
    run: Run = field(init=False, repr=False, compare=False)
    """The run directory, which there is from the end of preflight on."""

    def __post_init__(self) -> None:
        if self.config is None:
            self.config = self.given

    @property
    def voters(self) -> Voters[Any]:
        """Who votes, by the config."""
        from pate.voters import voters_of

        return voters_of(self.config)

    def info_operator(self, text: str) -> None:
        """Inform whoever may know the private data; of a benchmark, everybody."""
        (self.console.info if self.public.benchmark else self.console.info_private)(text)

    def find_related(self, epsilon: float, delta: float, joint: SharedBudget | None = None) -> None:
        """Note other runs on the same private data, and what all of them cost together with this one's (ε, δ)."""
        where = self.out, self.options.data_dir, self.options.config_dir
        found = _related_runs(self.given, *where, epsilon, delta, joint)
        if found is not None:
            self.together = found.together
            self.notes.public += [found.note] if found.note else []

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


_MAX_LOOKED_AT = 200
_MAX_NAMED = 3


@dataclass(frozen=True)
class _Related:
    """Other runs on the same private data, by name with ε for the operator, and what all of them cost together.

    With a shared ledger its whole budget is in that, in place of this run and all others that name that ledger.
    """

    named: tuple[str, ...]
    together: RelatedRuns

    @property
    def note(self) -> str | None:
        """What the operator is told before a run begins; None where no other run is known."""
        if not self.named:
            return None
        joint, more = self.together, len(self.named) - _MAX_NAMED
        which, hint = "this run", ". `pate ledger create` makes a budget that runs share, and keeps to it"
        if joint.shared_ledger:
            which, hint = "all runs of the shared ledger", ""
        return (
            f"the same private data was used by {', '.join(self.named[:_MAX_NAMED])}"
            f"{f' and {more} more' if more > 0 else ''}: with {which} that is ε = {joint.epsilon:.3g} at "
            f"δ = {joint.delta:.3g} together for {'one record' if joint.unit == 'record' else 'all records of one id'}"
            f"{f'; of {joint.uncounted} the cost is not known, and not in that' if joint.uncounted else ''}{hint}"
        )


def _related_runs(
    config: Config | BaselineConfig,
    out: Path | str,
    data_dir: Path | None,
    config_dir: Path,
    epsilon: float,
    delta: float,
    shared: SharedBudget | None = None,
) -> _Related | None:
    """Runs beside `out` that have used a private file of this one's, which costs (`epsilon`, `delta`) by itself.

    `shared` is the budget of the ledger that it shares. None where nothing else is known of the data.
    """
    from pate.planning.costs import ReleaseCost, compose
    from pate.report.schema import RelatedRuns

    if is_url(str(out)):
        return None
    own = _private_files(config.data, data_root(data_dir) or config_dir)
    here = Path(out).absolute()
    beside = [
        path.parent for path in sorted(here.parent.glob(f"*/{files.CONFIG}"))[:_MAX_LOOKED_AT] if path.parent != here
    ]
    known = [one for folder in beside if own and (one := _known(folder, own)) is not None]
    if shared is not None:
        assert isinstance(config, Config)
        known = [one for one in known if one.ledger is None or one.ledger != config.budget.ledger]
    elif not known:
        return None
    counted = [one.part for one in known if one.part is not None]
    alone = _cost(config, (epsilon, delta)) if shared is None else ReleaseCost(shared.epsilon, shared.delta)
    all_by_id = _unit(config) is not None and all(one.unit == _unit(config) for one in known)
    joint = compose([alone, *counted])
    together = RelatedRuns(
        epsilon=joint[0],
        delta=joint[1],
        others=len(counted),
        uncounted=len(known) - len(counted),
        shared_ledger=shared is not None,
        unit="id" if all_by_id else "record",
    )
    return _Related(tuple(one.shown for one in known), together)


@dataclass(frozen=True)
class _Known:
    """A run beside the new one; `part` is None where its cost cannot be told."""

    shown: str
    part: Any
    unit: str | None
    ledger: Any


def _known(folder: Path, own: frozenset[str]) -> _Known | None:
    """A run that has used one of the private files `own` and charged something, or trained on everything.

    None of others, and where it cannot be read: this is a courtesy, and stops nothing. Nothing that its config names is
    imported.
    """
    run = RunFiles(folder)
    if not (run.ledger_file.exists() or run.released_file.exists() or run.model_folder.exists()):
        return None  # there are neither books nor what a baseline releases: what was charged may be more, never less
    with suppress(PateError, OSError, ValueError, KeyError, TypeError, AttributeError):
        places = json.loads(run.places_file.read_text())
        config = stored_config(folder / files.CONFIG)
        if not own & _private_files(config.data, Path(places["data_dir"] or places["config_dir"])):
            return None
        part = _cost(config, _published(run))
        shown = folder.name if part is None else f"{folder.name} (ε = {part.epsilon:.3g})"
        return _Known(shown, part, _unit(config), config.budget.ledger if isinstance(config, Config) else None)
    return None


def _cost(config: Config | BaselineConfig, published: tuple[float, float] | None) -> Any:
    """What a run costs by its limits, whatever of them it used, else by the (ε, δ) alone; None where neither is known.

    A baseline with ids takes one record of each person. A record more or less, or changed, may put another in its
    place, which is two steps: one out, one in.
    """
    from pate.planning.costs import ReleaseCost
    from pate.voters import voters_of

    if isinstance(config, Config):
        with suppress(PateError), importing_only(()):
            classes = getattr(config.data, "classes", ())
            part = voters_of(config).part(max(2, len(classes)), published and published[0])
            if part is not None:
                return part
    if published is None:
        return None
    epsilon, delta = published
    if isinstance(config, BaselineConfig) and _unit(config) is not None:
        return ReleaseCost(2 * epsilon, delta * (1 + math.exp(min(epsilon, 700.0))))
    return ReleaseCost(epsilon, delta)


def _published(run: RunFiles) -> tuple[float, float] | None:
    """(ε, δ) of a finished run."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        privacy = json.loads(run.report_file.read_text())["privacy"]
        found = float(privacy["epsilon"]), float(privacy["delta"])
        return found if 0 <= found[0] < math.inf and 0 <= found[1] < 1 else None
    return None


def _unit(config: Config | BaselineConfig) -> str | None:
    """The column of ids whose records are protected together; None where one record is."""
    return getattr(config.data, "id", None) or ("ids" if getattr(config.data, "ids", False) else None)


def _private_files(data: Any, folder: Path) -> frozenset[str]:
    """Whole paths and URLs; of benchmarks none, since nobody's records are in them."""
    if not isinstance(data, OwnData):
        return frozenset()
    listed = [data.private] if isinstance(data.private, str) else list(data.private or ())
    names = [name for name in (*listed, getattr(data, "file", None)) if name]
    return frozenset(name if is_url(name) else str((folder / name).resolve()) for name in names)
