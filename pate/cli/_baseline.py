"""pate baseline."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pate.cli._options import AnchorOption, AsJson, LogJson, ResumeOption, as_argument, resume_hint
from pate.cluster._interrupts import advising


def baseline(
    config: Annotated[Path, typer.Argument(help="YAML file with a `baseline:` section")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value, for example budget.epsilon=2")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where data files are; else $PATE_DATA")] = None,
    out: Annotated[
        str | None, typer.Option(help="run directory, or its URL (s3://, gs://, file://); else runs/NAME-TIME")
    ] = None,
    address: Annotated[str | None, typer.Option(help="train DP-SGD on a GPU of this Ray cluster")] = None,
    resume: ResumeOption = None,
    anchor: AnchorOption = None,
    as_json: AsJson = False,
    log_json: LogJson = False,
) -> None:
    """Train a private learner without teachers (DP-SGD, DP-ERM) on the same data, to compare PATE with."""
    from pate.baselines._run import run_baseline
    from pate.cli._run import new_run, print_rows, report_seconds
    from pate.config import load_baseline_config
    from pate.errors import ConfigError
    from pate.report._files import summary_rows
    from pate.runs._console import console_for

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
    if as_json:
        print(json.dumps(outcome.report.model_dump(mode="json") | {"run": str(outcome.path)}))
    else:
        rows = summary_rows(outcome.report)
        print_rows(rows, f"run directory: {outcome.path}  (publishable: model/, report.*)")
        report_seconds(console, outcome.seconds)
