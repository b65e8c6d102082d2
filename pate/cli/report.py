"""pate report."""

from __future__ import annotations

from typing import Annotated

import typer

from pate.errors import RunError


def report(
    run: Annotated[str, typer.Argument(help="directory or URL of a finished `pate run` or `pate baseline`")],
    open_: Annotated[bool, typer.Option("--open", help="show the page in a browser")] = False,
) -> None:
    """Make the HTML page, the privacy statement and the plots again, from what the run has stored."""
    from pate.report.writing import write_pages
    from pate.runs.run import Run

    with Run.load(run) as found:
        if open_ and found.storage is not None:
            raise RunError(f"{run}: a page in storage cannot be shown; copy it to this machine")
        write_pages(found.path)
        found.sync()
        place = run.rstrip("/")
        written = (f"{place}/{path.name}" for path in (found.page, found.statement, found.plots))
        print(f"written: {', '.join(written)}")
        if found.private_page.exists():
            print(f"private: do not publish: {place}/{found.private_page.relative_to(found.path)}")
        if open_:
            import webbrowser

            if not webbrowser.open(found.page.resolve().as_uri()):
                print("no browser was found; open the page by hand")
