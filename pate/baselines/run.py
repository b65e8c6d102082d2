"""`pate baseline`, top to bottom: load, plan, train, release, report."""

from __future__ import annotations

import math
import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from pate import __version__
from pate.baselines import build_baseline
from pate.baselines.nonprivate import nonprivate_model
from pate.boundary.guard import guarded, is_pate_module, silenced
from pate.cluster.connect import check_address
from pate.cluster.remote_task import Progress, RemoteTask, gpu_on_cluster, here, on_gpu
from pate.cluster.session import joined
from pate.components.registry import dotted_names
from pate.config import BaselineConfig, RaySettings
from pate.data.partition import one_record_per_person
from pate.data.private import PrivateData, Records, check_private, clip_to_public_range, is_per_person, records_of
from pate.data.public import PublicData, groupings
from pate.data.sources import data_root, load
from pate.errors import ConfigError, RunError
from pate.networks.stored import tensors_from_bytes, tensors_to_bytes
from pate.networks.threads import waiting_threads
from pate.report.builder import benchmark_figures, data_name, software, together_of
from pate.report.files import store_report, write_pages
from pate.report.measures import measure
from pate.report.schema import BaselineReport, Privacy
from pate.report.sections.privacy import privacy_statement
from pate.report.sections.quality import warnings_of
from pate.runs.console import Console
from pate.runs.files import PLACES, SECONDS
from pate.runs.model_store import baseline_card, data_card, save_model
from pate.runs.related import related_runs
from pate.runs.run import Resume, Run
from pate.runs.signatures import sign

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
) -> BaselineOutcome:
    """Train the baseline as `config` says, in the directory or at the URL `out`.

    `resume` goes on with a run that is in `out`: an interrupted DP-SGD where it was. "auto" also begins one where there
    is none. Where this machine has no GPU, networks are trained on one of the Ray cluster at `address`, or in
    $RAY_ADDRESS. A private record that cannot be learned from counts as zero and stops nothing, and neither does a
    person with several records, of which one counts. `public` and `private` are the data, if it is in memory. With
    `curve`, the report on a benchmark also shows how well DP-SGD did while it trained.

    What was trained is stored under `private/`, together with what it cost, and published from there: a run that is
    resumed after that publishes the same weights, whenever it was interrupted.
    """
    console = console or Console()
    check_address(address)
    given = config
    if public is None or private is None:
        public, private = load(config.data, data_dir, config_dir, keep_missing=True)
    data, private = clip_to_public_range(public, private)
    check_private(data, private, keep_missing=True)
    data, records = replace(data, per_person=is_per_person(private)), records_of(private)
    if curve and not data.benchmark:
        raise ConfigError("curve: is for benchmarks; accuracies on private records are private")
    groupings(data, config.report.groups)
    from pate.preflight.features import with_learned_preparation

    config = with_learned_preparation(given, data.X_public)
    n_records = _public_count(config, data, records)
    model = _build(config, data, n_records)
    planned = _plan(model, config, records.X.shape[1:], n_records, console)
    cost = (model.plan()[3], config.budget.delta) if hasattr(model, "plan") else (config.budget.epsilon, 0.0)
    related = related_runs(config, out, data_dir, config_dir, *cost)
    for note in records.unused:
        console.info_private(note)
    for note in [*data.notes, *([related.note] if related is not None and related.note else [])]:
        console.info(f"note: {note}")
    in_cluster = joined(address, RaySettings()) if hasattr(model, "device") else nullcontext()
    with Run.create(out, given, resume) as directory, in_cluster:
        if directory.report_file.exists():
            return BaselineOutcome(_report_again(config, data, records, directory, console), out)
        root = data_root(data_dir)
        places = {"data_dir": root and str(root.resolve()), "config_dir": str(config_dir.resolve())}
        directory.note(PLACES, places)
        sign(directory, directory.config_file, directory.places_file)
        started = time.perf_counter()
        if not directory.released_file.exists():
            _train(model, config, data, records, directory, console, curve)
        card = _restore_released(model, directory.released_file)
        seconds = {"train": time.perf_counter() - started}
        save_model(model, directory.model_folder, card, directory)
        report = _report(config, data, records, model, planned, console)
        report = report.model_copy(
            update={"privacy": report.privacy.model_copy(update={"together": together_of(related)})}
        )
        seconds["total"] = time.perf_counter() - started
        directory.note(SECONDS, seconds)
        store_report(directory.path, report)
        write_pages(directory.path)
        directory.sync()
        return BaselineOutcome(report, out, seconds)


def _public_count(config: BaselineConfig, data: PublicData, records: Records) -> int:
    """The number of records that noise and sampling are worked out from: configured, or a benchmark's."""
    if config.records is not None:
        return config.records
    if data.benchmark:
        return len(records)
    raise ConfigError(
        "records: missing; say about how many private records there are, a figure you may publish: the sampling rate "
        "and the regularisation depend on it, and the exact number is private"
    )


def _build(config: BaselineConfig, data: PublicData, n_records: int) -> Any:
    given = {
        "epsilon": config.budget.epsilon,
        "delta": config.budget.delta,
        "n_records": n_records,
        "classes": range(len(data.classes)),
        "random_state": config.seed,
    }
    return build_baseline(config.baseline.name, dict(config.baseline.params), given)


def _plan(
    model: Any, config: BaselineConfig, shape: tuple[int, ...], n_records: int, console: Console
) -> dict[str, Any]:
    """What the run will spend, before a record is looked at; what it takes is tried on made-up examples."""
    if config.budget.epsilon is None and not hasattr(model, "plan"):
        raise ConfigError("budget.epsilon: missing; add it to the config")
    if not hasattr(model, "plan"):
        console.info(f"{config.name}: ε = {config.budget.epsilon:g}, δ = 0, for every data set.")
        return {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sigma, rate, steps, epsilon = model.plan()
        if hasattr(model, "rehearse"):
            model.rehearse(shape)
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            console.info(f"warning: {warning.message}")
    console.info(
        f"{config.name}: {steps} steps, σ = {sigma:.4g}, sampling rate {rate:.4g} of about {n_records} records. "
        f"ε to publish: {epsilon:.3g} at δ = {config.budget.delta:g}, fixed now and true for every data set."
    )
    return {"sigma": sigma, "sampling_rate": rate, "steps": steps}


def _train(
    model: Any,
    config: BaselineConfig,
    data: PublicData,
    everybody: Records,
    directory: Run,
    console: Console,
    curve: bool = False,
) -> None:
    """Train, and store what is released with its charge: nobody sees it before that, and it is never drawn again."""
    usable = everybody.usable(data.n_classes)
    chosen = one_record_per_person(everybody, data.n_classes, directory.key)
    records = everybody.only(chosen)
    (_fit if data.benchmark else _fit_on_private_data)(model, data, records, directory, console, curve)
    if surplus := int((usable & ~chosen).sum()):
        console.info_private(f"{surplus} records did not count: of a person with several records one does")
    if left_out := getattr(model, "left_out_", 0) + int((~usable & ~chosen).sum()):
        console.info_private(f"{left_out} records have no label or no numbers to learn from, and counted as zero")
    method = config.baseline
    card = {"baseline": method.name, "params": dict(method.params)} | data_card(data)
    card |= {"name": config.name} | baseline_card(model)
    about = {"card": card, "curve": list(getattr(model, "curve_", ()))}
    directory.release_once(tensors_to_bytes(model.weights(), about))


def _restore_released(model: Any, path: Path) -> dict[str, Any]:
    """Make `model` what was trained and paid for; returns the card it was stored with."""
    try:
        weights, about = tensors_from_bytes(path.read_bytes(), "np")
        card: dict[str, Any] = about["card"]
        model.restore(weights, card["learned"])
        model.epsilon_, model.delta_, model.curve_ = card["epsilon"], card["delta"], about["curve"]
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: what was paid for cannot be read ({type(error).__name__}); begin a new run") from None
    return card


def _fit(model: Any, data: PublicData, records: Records, directory: Run, console: Console, curve: bool = False) -> None:
    X = _shaped(model, records.X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `_plan` has shown them
        if hasattr(model, "plan"):
            with console.track("training", model.plan()[2]) as update:

                def progress(done: int, total: int) -> None:
                    update(done)
                    directory.sync(at_least_every=_SECONDS_BETWEEN_COPIES)

                given = model, X, records.y, data.X_public, _watched(data, records) if curve else None
                if gpu_on_cluster(getattr(model, "device", "cpu")):
                    private = not data.benchmark
                    task = RemoteTask("the baseline", fit_remotely, given, directory.baseline_state, private)
                    weights, about, figures = on_gpu(task, progress, console)
                    vars(model.restore(weights, about)).update(figures)
                else:
                    console.info(f"the baseline is trained here: {here()}")
                    _fitted(*given, kept=directory.baseline_state, progress=progress)
        else:
            with console.working("training"):
                by_person = records.ids is not None and "ids" in signature(model.fit).parameters
                model.fit(X, records.y, **({"ids": records.ids} if by_person else {}))


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
def _fit_on_private_data(
    model: Any, data: PublicData, records: Records, directory: Run, console: Console, curve: bool = False
) -> None:
    """Fit where a message, or what somebody else's class prints, could quote a record."""
    named = dotted_names([getattr(model, name, ()) for name in ("model", "preprocessing")])
    somebody_elses = not is_pate_module(type(model).__module__) or bool(named)
    with silenced() if somebody_elses else nullcontext():
        _fit(model, data, records, directory, console)


def _shaped(model: Any, X: np.ndarray) -> np.ndarray:
    return X if getattr(model, "accepts_images", False) else X.reshape(len(X), math.prod(X.shape[1:]))


def _report(
    config: BaselineConfig, data: PublicData, records: Records, model: Any, planned: dict, console: Console
) -> BaselineReport:
    unit = data.unit
    report = BaselineReport(
        name=config.name,
        pate_version=__version__,
        config_digest=config.digest(),
        classes=data.classes,
        method={"name": config.baseline.name, **config.baseline.params},
        planned=planned,
        privacy=Privacy(
            epsilon=model.epsilon_,
            delta=model.delta_,
            unit=unit,  # type: ignore[arg-type]
            statement=privacy_statement(model.epsilon_, model.delta_, unit),
        ),
        data=data_name(config.data),
        versions=software(),
        **_figures(config, data, records, model, console),
    )
    return report.model_copy(update={"warnings": warnings_of(report)})


def _report_again(
    config: BaselineConfig, data: PublicData, records: Records, directory: Run, console: Console
) -> BaselineReport:
    """The report of a model that was released; with new figures where other ones are wanted now, of the same model."""
    stored = BaselineReport.model_validate_json(directory.report_file.read_text())
    if stored.config_digest == config.digest():
        if not (directory.page.exists() and directory.statement.exists()):  # the run ended between report and pages
            write_pages(directory.path)
            directory.sync()
        return stored
    model = directory.model(trust=dotted_names(config.baseline.model_dump()))
    report = stored.model_copy(
        update=_figures(config, data, records, model, console) | {"config_digest": config.digest()}
    )
    report = report.model_copy(update={"warnings": warnings_of(report)})
    store_report(directory.path, report)
    write_pages(directory.path)
    directory.sync()
    return report


def _figures(
    config: BaselineConfig, data: PublicData, records: Records, model: Any, console: Console
) -> dict[str, Any]:
    """How good the model is, on public examples."""
    shaped = partial(_shaped, model)
    student, answers = measure(config.baseline.name, model, data, groups=config.report.groups, shaped=shaped)
    if not data.benchmark:
        return {"student": student, "benchmark": None}
    known: dict[str, Any] = {}
    if data.y_public is not None:
        right = float((model.predict(shaped(data.X_public)) == data.y_public).mean())
        known = {"public_accuracy": right, "public_examples": len(data.X_public)}
    nonprivate = nonprivate_model(config.nonprivate, data, records, config.seed, console)
    curve = tuple(getattr(model, "curve_", ())) or None
    benchmark = benchmark_figures(data, answers, config.report.groups, nonprivate, curve=curve, **known)
    return {"student": student, "benchmark": benchmark}
