"""What runs look like: pate report, pate compare, pate ledger."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pate.cli._options import AsJson, CommandGroup, FinishedRun, naming_options, print_table
from pate.errors import RunError
from pate.storage import is_url
from pate.storage._files import make_folder, write_atomically

if TYPE_CHECKING:
    from pate.ledger._chain import Pin
    from pate.runs.run import Run


def report(
    run: FinishedRun,
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
    from pate.report import _comparison as comparison
    from pate.report._plots import as_png, as_svg

    compared = comparison.compare_runs(runs, with_private)
    figure = comparison.draw_comparison(compared)
    svg = as_svg(figure, "comparison")
    make_folder(out)
    mode = 0o600 if with_private else 0o644
    page = comparison.render_comparison(compared, svg)
    for name, content in (("png", as_png(figure)), ("svg", svg.encode()), ("html", page.encode())):
        name = f"comparison.{name}"
        write_atomically(out / name, lambda path, c=content: path.write_bytes(c), mode)  # type: ignore[misc]
    if as_json:
        print(json.dumps(comparison.comparison_object(compared)))
        return
    print_table(comparison.table_rows(compared))
    for note in compared.notes:
        print(f"* {note}")
    print(f"written: {out}/comparison.html, comparison.png, comparison.svg")


LedgerPlace = Annotated[str, typer.Argument(help="run directory, its URL, or the folder of a shared ledger")]
OtherAnchor = Annotated[
    str | None, typer.Option(help="file or URL where links were kept besides; else the one the run names")
]

ledger = typer.Typer(
    cls=CommandGroup,
    help="Show what was spent, and check that nobody changed it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@ledger.command()
@naming_options
def create(
    path: Annotated[Path, typer.Argument(help="folder to make; runs name it in their configs")],
    epsilon: Annotated[float, typer.Option(help="what all runs on the data may cost together")],
    delta: Annotated[float, typer.Option(help="at this δ")] = 1e-5,
    order: Annotated[float, typer.Option(help="Rényi order of the filter")] = 8.0,
    as_json: AsJson = False,
) -> None:
    """Make a ledger that runs on the same data share, and print the lines that name it in their configs."""
    from pate.ledger import SharedBudget, SharedLedger

    made = SharedLedger.create(path.expanduser().absolute(), SharedBudget(order, epsilon, delta))
    name = {"path": str(made.folder), "id": made.id}
    if as_json:
        print(json.dumps({"ledger": name}))
    else:
        print(f"budget:\n  ledger: {{path: {json.dumps(name['path'])}, id: {made.id}}}")


@ledger.command()
def show(run: LedgerPlace, anchor: OtherAnchor = None, as_json: AsJson = False) -> None:
    """Check that nothing was changed, and show limits, charges and answers."""
    from pate.ledger._chain import verified

    with _place(run, anchor) as place, verified(place.path, place.key, place.head, place.pins) as (db, _):

        def rows(query: str) -> list[dict[str, Any]]:
            found = db.execute(query)
            names = [column[0] for column in found.description]
            return [dict(zip(names, row, strict=True)) for row in found]

        content = {
            "ledger": place.shown,
            "budget": (rows("SELECT * FROM budget") or [{"rdp_order": None}])[0],
            "runs": rows("SELECT * FROM runs"),
            "charges": rows("SELECT * FROM charges"),
            "unanswered": rows("SELECT COUNT(*) AS n FROM answers WHERE label < 0")[0]["n"],
        }
    content["epsilon"] = _spent_and_left(content)
    content["published"] = _published(run) if content["epsilon"] is None else None
    if as_json:
        print(json.dumps(content))
    else:
        _print(content)


@ledger.command()
def verify(run: LedgerPlace, anchor: OtherAnchor = None, as_json: AsJson = False) -> None:
    """Check every run, charge and answer, and that the chain reaches its head and all that was published."""
    from pate.ledger._chain import verify as verify_chain

    with _place(run, anchor) as place:
        links = verify_chain(place.path, place.key, place.head, place.pins)
    if as_json:
        pinned = {name: pin.link for name, pin in place.pins.items()}
        print(json.dumps({"ledger": place.shown, "links": links, "pinned": pinned, "unchanged": True}))
        return
    print(f"{place.shown}: {links} links, unchanged")
    if is_url(run) and not place.pins:
        note = "note: nothing was published yet and there is no anchor, so links missing at the end are not noticed"
        print(note, file=sys.stderr)


@dataclass(frozen=True)
class _Place:
    """A ledger, its key and head, and what vouches for it elsewhere."""

    shown: str
    path: Path
    key: bytes
    head: Path
    pins: Mapping[str, Pin] = field(default_factory=dict)


@contextmanager
def _place(run: str, anchor: str | None) -> Iterator[_Place]:
    """The ledger a run writes to, or a shared one; a copy where the run is in storage."""
    from pate.ledger._chain import identity, open_anchor
    from pate.runs._run_ledger import known_anchor
    from pate.runs.run import Run

    with Run.load(run) as found:
        place = _ledger_of(found)
        named = anchor or known_anchor(found, identity(place.key))
        if named:
            last = open_anchor(named, identity(place.key)).last()
            if last is None:
                raise RunError(f"{named}: the anchor holds nothing of this ledger")
            place = replace(place, pins={**place.pins, f"the anchor {named}": last})
        yield place


def _ledger_of(run: Run) -> _Place:
    from pate.config import Config
    from pate.ledger import History, SharedLedger
    from pate.runs._run_ledger import published_pins

    if run.storage is not None:
        History(run.storage, run.ledger_file, run.key, run.ledger_head)
        return _Place(run.storage.url, run.ledger_file, run.key, run.ledger_head, published_pins(run.path))
    pins: Mapping[str, Pin] = {}
    if run.config_file.exists():
        config = run.config
        path, pins = run.ledger_file, published_pins(run.path)
        named = config.budget.ledger if isinstance(config, Config) else None
        if named is None:
            if not path.exists() and not pins:
                raise RunError(f"{path}: there is no ledger yet")
            return _Place(str(path), path, run.key, run.ledger_head, pins)
        _, config_dir = run.places
        shared = SharedLedger.at(config_dir / named.path, named.id)
    elif SharedLedger.is_at(run.path):
        shared = SharedLedger.at(run.path)
    else:
        raise RunError(f"{run.place}: is not a run directory, nor a shared ledger")
    return _Place(str(shared.db), shared.db, shared.key, shared.head, pins)


def _published(place: str) -> dict[str, float] | None:
    """What a finished run's report says that it cost."""
    from pate.runs.run import Run

    try:
        with Run.load(place, inside=False) as run:
            privacy = run.report.privacy if run.report_file.exists() else None
    except RunError:  # in storage, where nothing was published yet
        return None
    return None if privacy is None else {"epsilon": privacy.epsilon, "delta": privacy.delta}


def _spent_and_left(content: dict[str, Any]) -> dict[str, float] | None:
    """ε of all charges of a shared ledger, and what is left of its budget; None where a run has a ledger of its own."""
    from pate.ledger import SharedBudget

    budget = content["budget"]
    if budget["rdp_order"] is None:
        return None
    joint = SharedBudget(budget["rdp_order"], budget["epsilon"], budget["delta"])
    used = sum(charge["rdp"] for charge in content["charges"])
    spent = joint.epsilon_of(used)
    left, share = max(0.0, joint.epsilon - spent), used / joint.rdp
    return {"budget": joint.epsilon, "spent": spent, "left": left, "delta": joint.delta, "share_of_rdp": share}


def _print(content: dict[str, Any]) -> None:
    print(content["ledger"])
    shared = content["epsilon"]
    if shared is not None:
        budget = content["budget"]
        print(f"shared budget: ε {shared['budget']:g} at δ = {shared['delta']:g}, Rényi order {budget['rdp_order']:g}")
        print(f"spent by all runs: ε {shared['spent']:.4g}; left: ε {shared['left']:.4g}")
        print(f"of what the filter allows at that order, {100 * shared['share_of_rdp']:.1f} % are used")
    for run in content["runs"]:
        own = [charge for charge in content["charges"] if charge["run"] == run["run"]]
        asked, answered = (sum(charge[column] for charge in own) for column in ("asked", "answered"))
        votes, rounds = _rounds(run["mechanism"])
        if rounds:
            each = "1 vote" if votes == "1" else f"{votes} votes"
            print(f"run {run['run']}: {each} per record or id, {', '.join(rounds)}, since {run['at']}")
            print(f"  {asked} of {run['max_queries']} rounds released")
            continue
        print(f"run {run['run']}: {run['mechanism']}, since {run['at']}")
        print(
            f"  asked {asked} of {run['max_queries']}, answered {answered} of {run['max_answers']}, "
            f"in {len(own)} batches"
        )
    if content["published"] is not None:
        cost = content["published"]
        print(f"ε to publish: {cost['epsilon']:.4g} at δ = {cost['delta']:g}, of limits that were fixed beforehand")


def _rounds(limits: str) -> tuple[str, list[str]]:
    """Votes of each record, and cells and mechanism of each round, read from the limits of neighbours.

    >>> _rounds("1 votes in (Round(cells=100, mechanism=Histogram(scale=1.0), by_student=False),)")
    ('1', ['100 cells by Histogram(scale=1.0)'])
    """
    found = re.findall(r"Round\(cells=(\d+), mechanism=(\w+\(.*?\)), by_student", limits)
    return limits.partition(" ")[0], [f"{cells} cells by {mechanism}" for cells, mechanism in found]
