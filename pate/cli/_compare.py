"""pate compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pate.cli._options import AsJson, print_table
from pate.storage._files import make_folder, write_atomically


def compare(
    runs: Annotated[
        list[str], typer.Argument(help="run directories, or their URLs, of `pate run` and `pate baseline`")
    ],
    out: Annotated[Path, typer.Option(help="folder for comparison.html, .svg and .png")] = Path("comparison"),
    with_private: Annotated[
        bool, typer.Option("--with-private", help="also data-dependent ε, which must not be published")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show accuracy against ε of several runs: one table, one plot. Runs that differ by seed only are put together."""
    from pate.report import _comparison as report
    from pate.report._plots import as_png, as_svg

    compared = report.compare_runs(runs, with_private)
    figure = report.draw_comparison(compared)
    svg = as_svg(figure, "comparison")
    make_folder(out)
    mode = 0o600 if with_private else 0o644
    page = report.render_comparison(compared, svg)
    for name, content in (("png", as_png(figure)), ("svg", svg.encode()), ("html", page.encode())):
        name = f"comparison.{name}"
        write_atomically(out / name, lambda path, c=content: path.write_bytes(c), mode)  # type: ignore[misc]
    if as_json:
        print(json.dumps(report.comparison_object(compared)))
        return
    print_table(report.table_rows(compared))
    for note in compared.notes:
        print(f"* {note}")
    print(f"written: {out}/comparison.html, comparison.png, comparison.svg")
