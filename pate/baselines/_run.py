"""`pate baseline`, top to bottom: prepare, train, release, report."""

from __future__ import annotations

import math
import warnings
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from pate import __version__
from pate.baselines import build_baseline, nonprivate_model
from pate.boundary._guard import guarded, is_pate_module, silenced
from pate.cluster._remote_task import Progress, RemoteTask, gpu_on_cluster, here, on_gpu
from pate.cluster._session import check_address, joined
from pate.components._registry import dotted_names, make_importable
from pate.config import BaselineConfig, RaySettings
from pate.data._sources import load
from pate.data.partition import one_record_per_person
from pate.data.private import PrivateData, Records, prepare_data, records_of
from pate.data.public import PublicData, groupings
from pate.errors import ConfigError, RunError
from pate.ledger import Charge, Limits, Pin
from pate.ledger._chain import identity
from pate.networks._process import waiting_threads
from pate.report._builder import benchmark_figures, data_name, measure, software
from pate.report._files import store_report, write_pages
from pate.report.schema import BaselineReport, Privacy
from pate.report.sections._privacy import privacy_statement
from pate.report.sections._quality import warnings_of
from pate.runs._console import Console
from pate.runs._files import SECONDS
from pate.runs._run_ledger import ChosenAnchor, choose_anchor, own_ledger, pin_to_json
from pate.runs.context import RunContext, RunOptions, begin_run
from pate.runs.model_store import baseline_card, data_card, save_model
from pate.runs.run import Resume, Run, remove_empty_run
from pate.storage._files import tensors_from_bytes, tensors_to_bytes

_SECONDS_BETWEEN_COPIES = 10.0
_FIGURES = ("sigma_", "history_", "epsilon_", "delta_", "left_out_", "curve_")
_MAX_WATCHED = 10_000


@dataclass(frozen=True)
class BaselineOutcome:
    """A finished run of a baseline."""

    report: BaselineReport
    path: Path | str
    seconds: dict[str, float] = field(default_factory=dict)


@waiting_threads()
def run_baseline(
    config: BaselineConfig,
    out: Path | str,
    *,
    data_dir: Path | None = None,
    config_dir: Path = Path(),
    address: str | None = None,
    resume: Resume = False,
    console: Console | None = None,
    public: PublicData | None = None,
    private: PrivateData | None = None,
    curve: bool = False,
    anchor: str | None = None,
) -> BaselineOutcome:
    """Train the baseline as `config` says, in the directory or at the URL `out`; finished stages are not done again.

    A private record that cannot be learned from counts as zero and stops nothing, and neither does a person with
    several records, of which one counts. What was trained is stored under `private/`, together with what it cost, and
    published from there: a run that is resumed after that publishes the same weights, whenever it was interrupted.

    Parameters
    ----------
    config : BaselineConfig
        The settings.
    out : Path or str
        The run directory, or a URL of one.
    data_dir : Path, default=None
        The folder of the data files; else that of $PATE_DATA, else beside the config.
    config_dir : Path, default=Path()
        The folder of the config, where other files that it names are.
    address : str, default=None
        A Ray cluster to join; where this machine has no GPU, networks are trained on one of that cluster, or of the
        one in $RAY_ADDRESS.
    resume : bool or "auto", default=False
        Whether to go on with a run that is in `out`, an interrupted DP-SGD where it was; "auto" also begins one.
    console : Console, default=None
        Where progress goes; None is standard error.
    public, private : PublicData and PrivateData, default=None
        The data, where it is in memory; else the config's source is read.
    curve : bool, default=False
        Whether the report on a benchmark also shows how well DP-SGD did while it trained.
    anchor : str, default=None
        A file or URL where the ledger's links are also kept; None is the user's own, "none" is nowhere.
    """
    options = RunOptions(data_dir=data_dir, config_dir=config_dir, address=address, resume=resume, anchor=anchor)
    context, records, model, planned = prepare(config, out, public, private, console or Console(), options, curve)
    cluster = joined(address, RaySettings()) if hasattr(model, "device") else nullcontext()
    with begin_run(out, config, options) as run, remove_empty_run(run), cluster:
        context.run = run
        stored = BaselineReport.model_validate_json(run.report_file.read_text()) if run.report_file.exists() else None
        if stored is None:
            place = choose_anchor(run, identity(run.key), anchor, context.console.info)
            with context.clock.stage("train"):
                if not run.released_file.exists():
                    train(context, records, model, curve)
                card, content = _restore_released(model, run.released_file)
                pin = charge(context, card, content, place)
                _refuse_diverged(context, model)
            save_model(model, run.model_folder, card | {"ledger": pin_to_json(pin)}, run)
            with context.clock.stage("report"):
                found = report(context, records, model, planned)
            run.note(SECONDS, context.clock.seconds)
        else:
            found = _report_again(context, records, stored)
        if found != stored:
            store_report(run.path, found)
        if found != stored or not (run.page.exists() and run.statement.exists()):
            write_pages(run.path)
            run.sync()
        return BaselineOutcome(found, out, context.clock.seconds)


def prepare(
    config: BaselineConfig,
    out: Path | str,
    public: PublicData | None,
    private: PrivateData | None,
    console: Console,
    options: RunOptions,
    curve: bool,
) -> tuple[RunContext, Records, Any, dict[str, Any]]:
    """Read the data, build the baseline and work out what it will spend; what it takes is tried on made-up examples.

    Returns the context, the private records, the baseline, and what a report says was planned. Nothing is begun, and
    nothing said until all of it has worked.
    """
    from pate.preflight._features import with_learned_preparation

    check_address(options.address)
    make_importable(options.config_dir)  # and not what is beside another config that was read meanwhile
    Run.check(out, config, options.resume)
    if public is None or private is None:
        public, private = load(config.data, options.data_dir, options.config_dir, keep_missing=True)
    public, private = prepare_data(public, private, keep_missing=True)
    records = records_of(private)
    if curve and not public.benchmark:
        raise ConfigError("curve: is for benchmarks; accuracies on private records are private")
    groupings(public, config.report.groups)
    context = RunContext(config, out, options, console, public)
    context.note_data(private)
    context.config = config = with_learned_preparation(config, public.X_public)
    n_records = config.records
    if n_records is None and public.benchmark:
        n_records = len(records)
    if n_records is None:
        raise ConfigError(
            "records: missing; say about how many private records there are, a figure you may publish: the sampling "
            "rate and the regularisation depend on it, and the exact number is private"
        )
    given = {
        "epsilon": config.budget.epsilon,
        "delta": config.budget.delta,
        "n_records": n_records,
        "classes": range(len(public.classes)),
        "random_state": config.seed,
    }
    model = build_baseline(config.baseline.name, dict(config.baseline.params), given)
    if hasattr(model, "plan"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sigma, rate, steps, context.epsilon = model.plan()
            if hasattr(model, "rehearse"):
                model.rehearse(records.X.shape[1:])
        context.notes.warnings += [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
        planned = {"sigma": sigma, "sampling_rate": rate, "steps": steps}
        what, delta = f"{steps} steps, σ = {sigma:.4g}, sampling rate {rate:.4g}", config.budget.delta
    elif config.budget.epsilon is None:
        raise ConfigError("budget.epsilon: missing; add it to the config")
    else:
        context.epsilon, planned, what, delta = config.budget.epsilon, {}, config.baseline.name, 0.0
    context.find_related(context.epsilon, delta)
    context.announce(f"{what}, about {n_records} records", delta)
    return context, records, model, planned


def train(context: RunContext, everybody: Records, model: Any, curve: bool) -> None:
    """Train, and store what is released with its charge: nobody sees it before that, and it is never drawn again."""
    data, config = context.public, context.config
    usable = everybody.usable(data.n_classes)
    chosen = one_record_per_person(everybody, data.n_classes, context.run.key)
    records = everybody.only(chosen)
    (_fit if data.benchmark else _fit_on_private_data)(context, records, model, curve)
    if surplus := int((usable & ~chosen).sum()):
        context.console.info_private(f"{surplus} records did not count: of a person with several records one does")
    if left_out := getattr(model, "left_out_", 0) + int((~usable & ~chosen).sum()):
        context.console.info_private(
            f"{left_out} records have no label or no numbers to learn from, and counted as zero"
        )
    card = {
        "baseline": config.baseline.name,
        "params": dict(config.baseline.params),
        "name": config.name,
        **data_card(data),
        **baseline_card(model),
    }
    about = {"card": card, "curve": list(getattr(model, "curve_", ()))}
    context.run.release_once(tensors_to_bytes(model.weights(), about))


def charge(context: RunContext, card: dict[str, Any], content: bytes, anchor: ChosenAnchor) -> Pin:
    """Enter what was trained in the run's ledger, by its digest and at its cost: once, and nothing else ever.

    It is stored under `private/` by then, where nobody has seen it, and is published after that: these very bytes, with
    the ledger's last link, which is returned.
    """
    run, digest = context.run, sha256(content).digest()
    cost = f"{card['baseline']}: ε = {card['epsilon']:.6g} at δ = {card['delta']:g}"
    with closing(own_ledger(run, Limits(1, 1, cost), anchor)()) as ledger:
        if ledger.stored([digest]):
            return ledger.head()
        if not ledger.room():
            raise RunError(f"{run.released_file}: is not what was charged; restore it, or begin a new run")
        with ledger.batch(1):
            ledger.charge_and_store([digest], [0], Charge(asked=1, answered=1))
        return ledger.head()


def _restore_released(model: Any, path: Path) -> tuple[dict[str, Any], bytes]:
    """Make `model` what was trained and is to be paid for; returns its card, and all bytes that were stored."""
    try:
        content = path.read_bytes()
        weights, about = tensors_from_bytes(content, "np")
        card: dict[str, Any] = about["card"]
        model.restore(weights, card["learned"])
        model.epsilon_, model.delta_, model.curve_ = card["epsilon"], card["delta"], about["curve"]
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: what was paid for cannot be read ({type(error).__name__}); begin a new run") from None
    return card, content


def _refuse_diverged(context: RunContext, model: Any) -> None:
    """Raise RunError where the weights are no numbers: nobody could load the model.

    That they are not depends on the noisy steps, and so on what was paid for: it is said after the charge.
    """
    if not all(np.isfinite(np.asarray(tensor)).all() for tensor in model.weights().values()):
        raise RunError(
            f"{context.run.place}: the training diverged, its weights are no numbers, and nothing is published. "
            f"ε = {model.epsilon_:.3g} is charged, as this too was learned from the records; begin a new run with a "
            "lower learning rate, whose ε adds to this one's"
        )


def _fit(context: RunContext, records: Records, model: Any, curve: bool = False) -> None:
    data, run, console, X = context.public, context.run, context.console, _shaped(model, records.X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `prepare` has noted them
        if not hasattr(model, "plan"):
            with console.working("training"):
                by_person = records.ids is not None and "ids" in signature(model.fit).parameters
                model.fit(X, records.y, **({"ids": records.ids} if by_person else {}))
            return
        with console.track("training", model.plan()[2]) as update:

            def progress(done: int, total: int) -> None:
                update(done)
                run.sync(at_least_every=_SECONDS_BETWEEN_COPIES)

            given = model, X, records.y, data.X_public, _watched(data, records) if curve else None
            if gpu_on_cluster(getattr(model, "device", "cpu")):
                private = not data.benchmark
                task = RemoteTask("the baseline", fit_remotely, given, run.baseline_state, private)
                weights, about, figures = on_gpu(task, progress, console)
                vars(model.restore(weights, about)).update(figures)
            else:
                console.info(f"the baseline is trained here: {here()}")
                _fitted(*given, kept=run.baseline_state, progress=progress)


def _fitted(
    model: Any, X: NDArray, y: NDArray, X_public: NDArray, watch: Any = None, *, kept: Path, progress: Progress
) -> Any:
    further = {} if watch is None else {"watch": watch}
    return model.fit(X, y, X_public=X_public, state=kept, progress=progress, **further)


def _watched(data: PublicData, records: Records) -> dict[str, tuple[NDArray, NDArray]]:
    """Labelled examples of a benchmark to measure on: those trained on, and all others."""
    assert data.X_test is not None
    assert data.y_test is not None
    X, y = [data.X_test], [data.y_test]
    if data.y_public is not None:
        X, y = [data.X_public, *X], [data.y_public, *y]
    training = records.X[:_MAX_WATCHED], records.y[:_MAX_WATCHED]
    return {"training": training, "test": (np.concatenate(X), np.concatenate(y))}


def fit_remotely(*given: Any, **further: Any) -> tuple[dict[str, NDArray], dict[str, Any], dict[str, Any]]:
    """What a baseline has learned, without the device that it learned on: private records came in."""
    model = _fitted(*given, **further)
    weights = {name: np.asarray(tensor) for name, tensor in model.weights().items()}
    figures = {name: getattr(model, name) for name in _FIGURES}
    return weights, model.learned(), figures


@guarded("the baseline")
def _fit_on_private_data(context: RunContext, records: Records, model: Any, curve: bool = False) -> None:
    """Fit where a message, or what somebody else's class prints, could quote a record."""
    named = dotted_names([getattr(model, name, ()) for name in ("model", "preprocessing")])
    somebody_elses = not is_pate_module(type(model).__module__) or bool(named)
    with silenced() if somebody_elses else nullcontext():
        _fit(context, records, model)


def _shaped(model: Any, X: np.ndarray) -> np.ndarray:
    return X if getattr(model, "accepts_images", False) else X.reshape(len(X), math.prod(X.shape[1:]))


def report(context: RunContext, records: Records, model: Any, planned: dict[str, Any]) -> BaselineReport:
    """All that a run publishes about itself, from what was released and from public data."""
    config, unit = context.config, context.public.unit
    found = BaselineReport(
        name=config.name,
        pate_version=__version__,
        config_digest=config.digest(),
        classes=context.public.classes,
        method={"name": config.baseline.name, **config.baseline.params},
        planned=planned,
        privacy=Privacy(
            epsilon=model.epsilon_,
            delta=model.delta_,
            unit=unit,  # type: ignore[arg-type]
            statement=privacy_statement(model.epsilon_, model.delta_, unit),
            together=context.together,
        ),
        data=data_name(config.data),
        versions=software(),
        **_figures(context, records, model),
    )
    return found.model_copy(update={"warnings": warnings_of(found)})


def _report_again(context: RunContext, records: Records, stored: BaselineReport) -> BaselineReport:
    """The report of a model that was released; with new figures where other ones are wanted now, of the same model."""
    if stored.config_digest == context.config.digest():
        return stored
    model = context.run.model(trust=dotted_names(context.config.baseline.model_dump()))
    figures = _figures(context, records, model) | {"config_digest": context.config.digest()}
    found = stored.model_copy(update=figures)
    return found.model_copy(update={"warnings": warnings_of(found)})


def _figures(context: RunContext, records: Records, model: Any) -> dict[str, Any]:
    """How good the model is, on public examples."""
    config, data, shaped = context.config, context.public, partial(_shaped, model)
    student, answers = measure(config.baseline.name, model, data, groups=config.report.groups, shaped=shaped)
    if not data.benchmark:
        return {"student": student, "benchmark": None}
    known: dict[str, Any] = {}
    if data.y_public is not None:
        right = float((model.predict(shaped(data.X_public)) == data.y_public).mean())
        known = {"public_accuracy": right, "public_examples": len(data.X_public)}
    nonprivate = nonprivate_model(config.nonprivate, data, records, config.seed, context.console)
    curve = tuple(getattr(model, "curve_", ())) or None
    benchmark = benchmark_figures(data, answers, config.report.groups, nonprivate, curve=curve, **known)
    return {"student": student, "benchmark": benchmark}
