"""pate report."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pate.errors import RunError


def report(
    run: Annotated[str, typer.Argument(help="directory or URL of a finished `pate run` or `pate baseline`")],
    open_: Annotated[bool, typer.Option("--open", help="show the page in a browser")] = False,
    mlflow: Annotated[
        str | None,
        typer.Option(
            help="add the run's publishable figures and files to MLflow: a tracking URI, or a folder of files"
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print the publishable figures as one flat JSON object and nothing else")
    ] = False,
) -> None:
    """Make the HTML page, the privacy statement and the plots again, from what the run has stored; or export it."""
    from pate.report._files import write_pages
    from pate.runs.run import Run

    with Run.load(run) as found:
        if mlflow is not None or as_json:
            from pate.report import _files as tracking

            number = None if mlflow is None else tracking.write_mlflow(found.path, mlflow)
            if as_json:
                print(json.dumps(tracking.tracked_object(found.path)))
            else:
                print(f"run {number} of the experiment is in MLflow: {mlflow}")
            return
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
