"""pate run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pate.cli._options import AnchorOption, AsJson, LogJson, ResumeOption, as_argument, resume_hint
from pate.cluster._interrupts import advising, held_back
from pate.errors import RunError
from pate.runs._console import Console, in_a_job

if TYPE_CHECKING:
    from pate.config import Config
    from pate.runs.run import Resume


def run(
    config: Annotated[Path | None, typer.Argument(help="YAML file; the embedded digits run if left out")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value, for example mechanism.sigma=30")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where data files are; else $PATE_DATA")] = None,
    out: Annotated[
        str | None, typer.Option(help="run directory, or its URL (s3://, gs://, file://); else runs/NAME-TIME")
    ] = None,
    resume: ResumeOption = None,
    address: Annotated[str | None, typer.Option(help="join this Ray cluster instead of starting a local Ray")] = None,
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
    from pate.runs._console import console_for

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
    if as_json:
        content = outcome.report.model_dump(mode="json")
        print(json.dumps(content | {"run": str(outcome.path)}))
    else:
        _print_outcome(outcome)
        report_seconds(console, outcome.seconds)


def _print_outcome(outcome: object) -> None:
    from pate.report._files import summary_rows
    from pate.report._pages import percent
    from pate.runs.context import Outcome

    assert isinstance(outcome, Outcome)
    rows = summary_rows(outcome.report)
    figures = outcome.private_figures
    if figures:
        each, plurality = figures["mean_teacher_accuracy"], figures["plurality_accuracy"]
        text = f"{percent(each)} right on average, {percent(plurality)} by plurality (private: do not publish)"
        rows.insert(1, ("each teacher (benchmark)", text))
    print_rows(
        rows, f"run directory: {outcome.path}  (publishable: labels.npz, student/, report.*, plots/, privacy.txt)"
    )


def print_rows(rows: list[tuple[str, str]], last: str) -> None:
    """Two columns on standard output, and a last line."""
    from rich.table import Table

    from pate.runs._console import plain_console

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    console = plain_console()
    console.print(table)
    console.print(last, soft_wrap=True)


def report_seconds(console: Console, seconds: Mapping[str, float]) -> None:
    """How long each stage took, to the operator alone: time spent on private data is private too."""
    console.info_private("seconds: " + ", ".join(f"{stage} {time:.1f}" for stage, time in seconds.items()))


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
    newest = _newest_run(config)
    if newest is not None:
        return newest
    if resume == "auto":
        return _runs() / f"{config.name}-{config.release_digest()[:12]}"
    raise RunError(f"{_runs()}/{config.name}-*: no run of this config to resume; name its directory with --out")


def _newest_run(config: Config) -> Path | None:
    from pate.config import stored_config
    from pate.runs._files import CONFIG

    found = [(path, stored_config(path)) for path in sorted(_runs().glob(f"{config.name}-*/{CONFIG}"), reverse=True)]
    for path, stored in found:
        if stored.digest() == config.digest():
            return path.parent
    for path, stored in found:  # one that differs in what releases nothing new, as in its student
        if stored.release_digest() == config.release_digest():
            return path.parent
    return None
