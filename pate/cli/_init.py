"""pate init."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pate.cli._options import naming_options, print_table
from pate.errors import ConfigError
from pate.storage._files import make_folder, write_atomically

if TYPE_CHECKING:
    from pate.planning._config_wizard import Start
    from pate.runs._console import Console


def init(
    data: Annotated[Path, typer.Argument(help="private records with labels, .csv or .parquet")],
    public: Annotated[Path, typer.Option(help="public examples without labels, with the same columns")],
    label: Annotated[str | None, typer.Option(help="column to predict; guessed if left out")] = None,
    id: Annotated[str | None, typer.Option(help="column that says whose record it is; guessed if left out")] = None,
    test: Annotated[Path | None, typer.Option(help="public examples with labels, to test the student on")] = None,
    classes: Annotated[
        str | None, typer.Option(help="values of the label, a,b,c; else those in --test, or in private data")
    ] = None,
    records: Annotated[int | None, typer.Option(help="about how many records, or ids; it counts as public")] = None,
    marker: Annotated[
        list[str] | None, typer.Option(help="text that means missing, besides those guessed; may be given again")
    ] = None,
    target_epsilon: Annotated[float, typer.Option(help="the ε that may be spent")] = 2.0,
    delta: Annotated[float | None, typer.Option(help="δ; chosen by the number of records if left out")] = None,
    encoding: Annotated[
        str | None, typer.Option(help="encoding of all csv files, such as cp1252; guessed if left out")
    ] = None,
    out: Annotated[Path, typer.Option(help="where the config goes")] = Path("config.yaml"),
    force: Annotated[bool, typer.Option("--force", help="write over what is in --out")] = False,
) -> None:
    """Look at data files and write a commented config that runs; say what was guessed, and all that is wrong."""
    if out.exists() and not force:
        raise ConfigError("{out}: is there already; add {force} to write over it", out=str(out), force=True)
    from pate.planning._config_wizard import config_text, start
    from pate.runs._console import Console

    console = Console()
    listed = [name.strip() for name in classes.split(",")] if classes else []
    found = naming_options(start)(
        data, public, test=test, label=label, id=id, classes=listed, records=records,
        markers=marker or (), target_epsilon=target_epsilon, delta=delta, encoding=encoding, console=console,
    )  # fmt: skip
    _print_columns(found)
    make_folder(out.parent)
    text = config_text(found, out)
    write_atomically(out, text, mode=0o644)
    _print_guesses(found, out)
    _check(found, out, console)


def _print_columns(found: Start) -> None:
    """A row for each column. Figures about private records are for the holder at a terminal only."""
    at_terminal = sys.stdout.isatty()
    header: tuple[str, ...] = ("column", "type", "missing", "distinct", "written", "what is wrong")
    if at_terminal:
        header = (*header[:3], "missing (private)", *header[3:])
    rows = []
    for one in found.columns:
        share = found.private_missing[one.name]
        inside = ("cannot be read" if share is None else _percent(share),) if at_terminal else ()
        rows.append((one.name, one.kind, _percent(one.missing), *inside, f"{one.distinct:,}", one.written, one.wrong))
    for name, why in found.ignored.items():
        rows.append((name or "''", "", "", *(("",) if at_terminal else ()), "", "ignore", why))
    print(f"{found.public} and {found.private}, figures of the former:\n")
    print_table([header, *rows])
    classes = (
        ", ".join(found.classes) if at_terminal or not found.is_private("classes") else "the classes in the config"
    )
    print(f"\n  to predict: {found.label}, one of {classes}")
    print(f"  protected:  each {found.id or 'row'}{', with all its records' if found.id else ''}")


def _print_guesses(found: Start, out: Path) -> None:
    from pate.planning._config_wizard import LOUD, per_row_warning

    at_terminal = sys.stdout.isatty()
    if at_terminal or not found.is_private("public_record_count"):
        print(f"\nchosen: {found.choice.described}: ε = {found.choice.epsilon:.3g} at δ = {found.delta:g}")
    else:
        print(f"\nchosen: voters and a budget for ε = {found.target_epsilon:g}; what it depends on is private")
    if found.id is None:
        print(per_row_warning(found, out))
    for guess in found.guesses:
        print(f"guessed: {guess}")
    for text in found.loud:
        shown = text if at_terminal else f"{text.partition(':')[0]}, in {out}; the value is shown at a terminal only"
        print(f"{LOUD}: {shown}")
    print(f"\nwrote {out}; read it, then: pate run {out}")


def _check(found: Start, out: Path, console: Console) -> None:
    """Raise DataError with all that is wrong with the data as the config reads it."""
    from pate.config import load_config
    from pate.data.private import check_private, records_of
    from pate.planning._config_wizard import private_errors
    from pate.preflight._rehearsal import rehearse
    from pate.runs.context import RunContext, RunOptions
    from pate.voters import voters_of

    config = load_config(out)
    voters = voters_of(config)
    public = [out.parent / name for key in ("public", "test") if (name := getattr(config.data, key, None))]
    with private_errors(found.private, [*public, *(path.absolute() for path in public)], console):
        data, private = voters.load(None, out.parent, by_workers=False)
        check_private(data, private, voters.keeps_unusable_records)
    records = records_of(private)
    for note in (*data.notes, *records.unused):
        print(f"note: {note}")
    for note in (note for note in records.notes if note not in records.unused):
        console.info_private(note)
    context = RunContext(config, out, RunOptions(config_dir=out.parent, force=True), console, data)
    voters.check_public(data)
    voters.check_private(context, records)
    context.announce_private()
    rehearsal = rehearse(config, data)
    if rehearsal is not None and rehearsal.tells_classes_apart:
        print(f"note: {rehearsal}")
    for warning in (*data.warnings, *([] if rehearsal is None or rehearsal.tells_classes_apart else [rehearsal])):
        print(f"WARNING: {warning}")


def _percent(share: float) -> str:
    return "" if share == 0 else f"{100 * share:.1f} %"
