"""pate report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="directory of a finished `pate run` or `pate baseline`")],
    open_: Annotated[bool, typer.Option("--open", help="show the page in a browser")] = False,
) -> None:
    """Make the HTML page, the privacy statement and the plots again, from what the run has stored."""
    from pate.report.writing import write_pages

    write_pages(run)
    page = run / "report.html"
    print(f"written: {page}, {run / 'privacy.txt'}, {run / 'plots'}")
    if (run / "private" / "report.html").exists():
        print(f"private: do not publish: {run / 'private' / 'report.html'}")
    if open_:
        import webbrowser

        if not webbrowser.open(page.resolve().as_uri()):
            print("no browser was found; open the page by hand")
