"""What trains on private data: pate run, pate baseline, pate reproduce."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pate.cli._options import (
    AddressOption,
    AnchorOption,
    AsJson,
    DataDir,
    LogJson,
    OutOption,
    ResumeOption,
    as_argument,
    resume_hint,
)
from pate.cluster._interrupts import advising, held_back
from pate.errors import ConfigError, RunError
from pate.runs._console import Console, console_for, in_a_job, plain_console

if TYPE_CHECKING:
    from pate.baselines._run import BaselineOutcome
    from pate.config import Config
    from pate.runs.context import Outcome
    from pate.runs.run import Resume


def run(
    config: Annotated[Path | None, typer.Argument(help="YAML file; the embedded digits run if left out")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value, for example mechanism.sigma=30")] = None,
    data_dir: DataDir = None,
    out: OutOption = None,
    resume: ResumeOption = None,
    address: AddressOption = None,
    force: Annotated[bool, typer.Option("--force", help="train even where parts are too small to learn from")] = False,
    anchor: AnchorOption = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(help="private/teachers: use teachers that the run has stored elsewhere, though they may run code"),
    ] = None,
    evaluate_teachers: Annotated[
        bool,
        typer.Option("--evaluate-teachers", help="on a benchmark, also say how often teachers are right (private)"),
    ] = False,
    as_json: AsJson = False,
    log_json: LogJson = False,
) -> None:
    """Train teachers on private data, release labels privately, train a student, report."""
    with held_back(end_at_once=True):  # threads that libraries start while they are loaded leave signals to us
        from pate.config import load_config
    settings = load_config(config, set_ or ())  # before the rest is loaded: a mistake in it is reported at once
    with held_back(end_at_once=True):
        from pate import pipeline

    wanted = as_argument(resume)
    directory = os.path.expanduser(out) if out else _place(settings, wanted)
    console = console_for(log_json)
    with advising(partial(resume_hint, directory)):
        outcome = pipeline.run(
            settings,
            directory,
            data_dir=data_dir,
            config_dir=config.parent if config else Path(),
            address=address,
            resume=wanted,
            force=force,
            anchor=anchor,
            trust=trust or (),
            console=console,
            evaluate_teachers=evaluate_teachers,
        )
    from pate.report._pages import percent

    rows = []
    if figures := outcome.private_figures:
        each, plurality = percent(figures["mean_teacher_accuracy"]), percent(figures["plurality_accuracy"])
        text = f"{each} right on average, {plurality} by plurality (private: do not publish)"
        rows.append(("each teacher (benchmark)", text))
    _print_outcome(outcome, "labels.npz, student/, report.*, plots/, privacy.txt", console, as_json, rows)


def _print_outcome(
    outcome: Outcome | BaselineOutcome,
    publishable: str,
    console: Console,
    as_json: bool,
    private_rows: Sequence[tuple[str, str]] = (),
) -> None:
    """The figures of a run that is done; how long its stages took, which is private too, for the operator alone."""
    from pate.report._files import summary_rows

    if as_json:
        print(json.dumps(outcome.report.model_dump(mode="json") | {"run": str(outcome.path)}))
        return
    first, *others = summary_rows(outcome.report)
    print_rows([first, *private_rows, *others], f"run directory: {outcome.path}  (publishable: {publishable})")
    seconds = ", ".join(f"{stage} {time:.1f}" for stage, time in outcome.seconds.items())
    console.info_private("seconds: " + seconds)


def print_rows(rows: list[tuple[str, str]], last: str) -> None:
    """Two columns on standard output, and a last line."""
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    console = plain_console()
    console.print(table)
    console.print(last, soft_wrap=True)


def new_run(name: str) -> Path:
    """A run directory that is not there yet, named by the config and the time."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path, number = _runs() / f"{name}-{stamp}", 2
    while path.exists():
        path, number = _runs() / f"{name}-{stamp}-{number}", number + 1
    return path


def _runs() -> Path:
    """Where runs go that name no place. A submitted job's own folder is removed with the job, so not there."""
    if "PATE_RUNS" in os.environ:
        return Path(os.environ["PATE_RUNS"])
    return Path.home() / "pate-runs" if in_a_job() else Path("runs")


def _place(config: Config, resume: Resume) -> Path:
    """The directory of a run that names none. One that begins by `auto` is named by its config alone, so that of
    several that begin at once one has it."""
    if not resume:
        return new_run(config.name)
    from pate.config import stored_config
    from pate.runs._files import CONFIG

    found = [(path, stored_config(path)) for path in sorted(_runs().glob(f"{config.name}-*/{CONFIG}"), reverse=True)]
    newest = [path for path, stored in found if stored.digest() == config.digest()]
    # or one that differs in what releases nothing new, as in its student
    newest += [path for path, stored in found if stored.release_digest() == config.release_digest()]
    if newest:
        return newest[0].parent
    if resume == "auto":
        return _runs() / f"{config.name}-{config.release_digest()[:12]}"
    raise RunError(f"{_runs()}/{config.name}-*: no run of this config to resume; name its directory with --out")


def baseline(
    config: Annotated[Path, typer.Argument(help="YAML file with a `baseline:` section")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value, for example budget.epsilon=2")] = None,
    data_dir: DataDir = None,
    out: OutOption = None,
    address: Annotated[str | None, typer.Option(help="train DP-SGD on a GPU of this Ray cluster")] = None,
    resume: ResumeOption = None,
    anchor: AnchorOption = None,
    as_json: AsJson = False,
    log_json: LogJson = False,
) -> None:
    """Train a private learner without teachers (DP-SGD, DP-ERM) on the same data, to compare PATE with."""
    from pate.baselines._run import run_baseline
    from pate.config import load_baseline_config

    settings = load_baseline_config(config, set_ or ())
    if resume and out is None:
        raise ConfigError("--resume: name the run's directory with --out")
    directory = os.path.expanduser(out) if out else new_run(settings.name)
    console = console_for(log_json)
    with advising(partial(resume_hint, directory)):
        outcome = run_baseline(
            settings,
            directory,
            data_dir=data_dir,
            config_dir=config.parent,
            address=address,
            resume=as_argument(resume),
            anchor=anchor,
            console=console,
        )
    _print_outcome(outcome, "model/, report.*", console, as_json)


def reproduce(
    data: Annotated[
        str, typer.Argument(help="mnist, svhn, cifar10, adult or digits; or a paper: abadi, abadi-cifar10, tramer")
    ],
    quick: Annotated[bool, typer.Option("--quick", help="one seed, fewer rows, a shorter training")] = False,
    votes: Annotated[bool, typer.Option("--votes", help="the authors' votes instead of own teachers")] = False,
    seeds: Annotated[int | None, typer.Option(help="how many seeds; 3 if left out, 1 with --quick")] = None,
    rows: Annotated[
        str | None, typer.Option(help="only these rows, by name: msvec-250,gnmax-250; any other name lists all")
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="figures 2 and 3 of the 2017 paper alone, which are private")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="folder for the runs, else runs/reproduce-DATA; what is there is not run again")
    ] = None,
    data_dir: DataDir = None,
    address: AddressOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the publishable figures as one JSON object")] = False,
    log_json: LogJson = False,
) -> None:
    """Run what the papers ran, and print their figures beside ours. Repeat the command to go on after a stop."""
    from pate import reproduce as known
    from pate.reproduce import _run as run
    from pate.reproduce import _table as table

    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds {seeds}: must be at least 1")
    if figures and rows is not None:
        raise ConfigError("--figures: has no rows; leave out --rows")
    names = None if rows is None else [name.strip() for name in rows.split(",")]
    study = known.study(data, votes, quick, names)
    study = study.figures_alone() if figures else study
    kind = "-votes" * votes + "-quick" * quick + "-figures" * figures
    out = out.expanduser() if out else Path("runs") / f"reproduce-{data}{kind}"
    seeds, console = 1 if figures else seeds or (1 if quick else 3), console_for(log_json)
    with advising(lambda: "; the same command goes on from here"):
        found = run.reproduce(study, out, seeds, data_dir=data_dir, address=address, console=console)
    if study.panels:
        lines, written = table.baseline_lines(found.public), f"table.txt, {run.FIGURE}"
    else:
        lines, written = table.public_lines(found.public), f"table.txt; under {out}/private (do not publish) the rest"
        if not in_a_job():  # whose log is no place for what is private
            lines += ["", *table.private_lines(found.public, found.private)]
    if as_json:
        print(json.dumps(found.public, ensure_ascii=False))
        return
    print("\n".join(lines))
    print(f"\nwritten: {out}/results.json, {written}")
