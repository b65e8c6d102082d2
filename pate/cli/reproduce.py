"""pate reproduce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pate.cluster.interrupts import advising
from pate.errors import ConfigError


def reproduce(
    data: Annotated[
        str, typer.Argument(help="mnist, svhn, cifar10, adult or digits; or a paper: abadi, abadi-cifar10, tramer")
    ],
    quick: Annotated[bool, typer.Option("--quick", help="one seed, fewer rows, a shorter training")] = False,
    votes: Annotated[bool, typer.Option("--votes", help="the authors' votes instead of own teachers")] = False,
    seeds: Annotated[int | None, typer.Option(help="how often everything is run; 3, with --quick 1")] = None,
    rows: Annotated[
        str | None, typer.Option(help="only these rows, by name: msvec-250,gnmax-250; any other name lists all")
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="figures 2 and 3 of the 2017 paper alone, which are private")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="folder for the runs, else runs/reproduce-DATA; what is there is not run again")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where data files are; else $PATE_DATA")] = None,
    address: Annotated[str | None, typer.Option(help="join this Ray cluster instead of starting a local Ray")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the publishable figures as one JSON object")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="progress and notes as JSON lines")] = False,
) -> None:
    """Run what the papers ran, and print their figures beside ours. Repeat the command to go on after a stop."""
    from pate.reproduce import run, table
    from pate.reproduce.baseline_runs import baseline_studies
    from pate.reproduce.rows import figures_alone, study
    from pate.runs.console import console_for, in_a_job

    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds {seeds}: must be at least 1")
    if figures and rows is not None:
        raise ConfigError("--figures: has no rows; leave out --rows")
    if data in baseline_studies():
        if figures:
            raise ConfigError(f"--figures: {data} has no teachers to draw them of; leave it out")
        _reproduce_baselines(data, quick, votes, seeds, rows, out, data_dir, address, as_json, log_json)
        return
    chosen = study(data, votes, quick, _names(rows))
    if figures:
        chosen, seeds = figures_alone(chosen), 1
    kind = "-votes" * votes + "-quick" * quick + "-figures" * figures
    out = out.expanduser() if out else Path("runs") / f"reproduce-{data}{kind}"
    console = console_for(log_json)
    with advising(lambda: "; the same command goes on from here"):
        result = run.reproduce(
            chosen, out, seeds or (1 if quick else 3), data_dir=data_dir, address=address, console=console
        )
    if as_json:
        print(json.dumps(result.public, ensure_ascii=False))
        return
    print("\n".join(table.public_lines(result.public)))
    if not in_a_job():  # whose log is no place for them
        print("\n".join(["", *table.private_lines(result.public, result.private)]))
    print(f"\nwritten: {out}/results.json, table.txt; under {out}/private (do not publish) the other figures")


def _names(rows: str | None) -> list[str] | None:
    """What `--rows` lists."""
    return None if rows is None else [name.strip() for name in rows.split(",")]


def _reproduce_baselines(
    name: str,
    quick: bool,
    votes: bool,
    seeds: int | None,
    rows: str | None,
    out: Path | None,
    data_dir: Path | None,
    address: str | None,
    as_json: bool,
    log_json: bool,
) -> None:
    """A paper about a baseline, which has no teachers."""
    from pate.reproduce.baseline_runs import FIGURE, baseline_study, reproduce_baselines, table_lines
    from pate.runs.console import console_for

    if votes:
        raise ConfigError(f"--votes: {name} is about a learner without teachers; leave it out")
    chosen = baseline_study(name, quick, _names(rows))
    out = out.expanduser() if out else Path("runs") / f"reproduce-{name}{'-quick' * quick}"
    console = console_for(log_json)
    with advising(lambda: "; the same command goes on from here"):
        result = reproduce_baselines(
            chosen, out, seeds or (1 if quick else 3), data_dir=data_dir, address=address, console=console
        )
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
        return
    print("\n".join(table_lines(result)))
    print(f"\nwritten: {out}/results.json, table.txt, {FIGURE}")
