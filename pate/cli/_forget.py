"""pate forget."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from pate.cli._options import Trust
from pate.errors import ConfigError, RunError


def forget(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="run directory, or its URL")],
    ids: Annotated[list[str] | None, typer.Option("--id", help="id of a record, as in the data's id column")] = None,
    rows: Annotated[
        str | None, typer.Option(help="rows of private records, from 0, where there are no ids: 5 or 5,17")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where data files are; else as when the run began")] = None,
    trust: Trust = None,
) -> None:
    """Unlearn records: train the teachers they touched again, without them."""
    from pate import followup as forgetting
    from pate.config import Config
    from pate.data.private import records_of
    from pate.runs._signatures import own_or_trusted
    from pate.runs.run import Run, Version
    from pate.voters import voters_of

    numbers = _numbers(rows)
    stack = ctx.with_resource(ExitStack())
    found = stack.enter_context(Run.load(run))
    stack.enter_context(own_or_trusted(trust or (), found))
    known_data_dir, config_dir = found.places
    config = found.config
    if not isinstance(config, Config):
        raise RunError(f"{run}: is a run of `pate baseline`, which has no teachers to train again")
    if getattr(config.data, "read_by", "driver") == "workers":
        raise RunError("pate forget: only for runs whose data is read by the driver (data.read_by)")
    voters = voters_of(config)
    public, private = voters.load(data_dir or known_data_dir, config_dir, by_workers=False)
    with Run.create(run, config, resume=True) as directory:
        n_teachers = forgetting.forget(config, public, records_of(private), directory, ids or (), numbers, config_dir)
        directory.sync()
        version = Version.of(directory).version
    print("\n".join(voters.forgotten(n_teachers, version)))


def _numbers(rows: str | None) -> list[int]:
    """What `--rows` lists."""
    try:
        return [int(row) for row in rows.split(",")] if rows is not None else []
    except ValueError:
        raise ConfigError("{rows}: must be numbers of rows with commas between, such as 5,17", rows=rows) from None
