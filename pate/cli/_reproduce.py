"""pate reproduce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pate.cli._options import LogJson
from pate.cluster._interrupts import advising
from pate.errors import ConfigError


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
    data_dir: Annotated[Path | None, typer.Option(help="where data files are; else $PATE_DATA")] = None,
    address: Annotated[str | None, typer.Option(help="join this Ray cluster instead of starting a local Ray")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the publishable figures as one JSON object")] = False,
    log_json: LogJson = False,
) -> None:
    """Run what the papers ran, and print their figures beside ours. Repeat the command to go on after a stop."""
    from pate.reproduce import _rows as known
    from pate.reproduce import _run as run
    from pate.reproduce import _table as table
    from pate.runs._console import console_for, in_a_job

    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds {seeds}: must be at least 1")
    if figures and rows is not None:
        raise ConfigError("--figures: has no rows; leave out --rows")
    names = None if rows is None else [name.strip() for name in rows.split(",")]
    of_baseline = data in known.baseline_studies()  # which has no teachers
    if of_baseline and figures:
        raise ConfigError(f"--figures: {data} has no teachers to draw them of; leave it out")
    if of_baseline and votes:
        raise ConfigError(f"--votes: {data} is about a learner without teachers; leave it out")
    kind = "-votes" * votes + "-quick" * quick + "-figures" * figures
    out = out.expanduser() if out else Path("runs") / f"reproduce-{data}{kind}"
    seeds, console = 1 if figures else seeds or (1 if quick else 3), console_for(log_json)
    with advising(lambda: "; the same command goes on from here"):
        if of_baseline:
            chosen = known.baseline_study(data, quick, names)
            public = run.reproduce_baselines(chosen, out, seeds, data_dir=data_dir, address=address, console=console)
            lines, written = table.baseline_lines(public), f"table.txt, {run.FIGURE}"
        else:
            study = known.study(data, votes, quick, names)
            study = known.figures_alone(study) if figures else study
            found = run.reproduce(study, out, seeds, data_dir=data_dir, address=address, console=console)
            public, lines = found.public, table.public_lines(found.public)
            if not in_a_job():  # whose log is no place for what is private
                lines += ["", *table.private_lines(found.public, found.private)]
            written = f"table.txt; under {out}/private (do not publish) the other figures"
    if as_json:
        print(json.dumps(public, ensure_ascii=False))
        return
    print("\n".join(lines))
    print(f"\nwritten: {out}/results.json, {written}")
