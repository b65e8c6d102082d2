"""pate ledger show and pate ledger verify."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pate.errors import RunError
from pate.storage import is_url

if TYPE_CHECKING:
    from pate.config import Config

Run = Annotated[str, typer.Argument(help="run directory, or its URL")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]

app = typer.Typer(help="What was spent, and that nobody changed it.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def show(run: Run, as_json: AsJson = False) -> None:
    """Limits, charges and answers."""
    from pate.chain import named_errors

    with _places(run) as (path, _, _), named_errors(path):
        db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        db.row_factory = sqlite3.Row
        runs = [dict(row) for row in db.execute("SELECT * FROM runs")]
        charges = [dict(row) for row in db.execute("SELECT * FROM charges")]
        budget = dict(db.execute("SELECT * FROM budget").fetchone())
        declined = db.execute("SELECT COUNT(*) FROM answers WHERE label < 0").fetchone()[0]
    content = {"ledger": _shown(run, path), "budget": budget, "runs": runs, "charges": charges, "unanswered": declined}
    if as_json:
        print(json.dumps(content))
        return
    _print(content)


@app.command()
def verify(run: Run, as_json: AsJson = False) -> None:
    """Check the chain of every run, charge and answer, and that it reaches its head."""
    from pate.chain import verify as verify_chain

    with _places(run) as (path, key, head):
        links = verify_chain(path, key, head)
    if as_json:
        print(json.dumps({"ledger": _shown(run, path), "links": links, "unchanged": True}))
    else:
        print(f"{_shown(run, path)}: {links} links, unchanged")


def _shown(run: str, path: Path) -> str:
    return run if is_url(run) else str(path)


@contextmanager
def _places(run: str) -> Iterator[tuple[Path, bytes, Path]]:
    """The ledger a run writes to, its key and its head; a copy of them where the run is in storage."""
    if not is_url(run):
        yield _local_places(Path(run))
        return
    from pate.storage import open_storage
    from pate.stored_ledger import History

    storage = open_storage(run)
    key = storage.read("private/key")
    if key is None:
        raise RunError(f"{run}: is not a run directory")
    with TemporaryDirectory(prefix="pate-ledger-") as folder:  # mode 0700
        path, head = Path(folder) / "ledger.db", Path(folder) / "ledger.head"
        History(storage, path, key, head)
        yield path, key, head


def _local_places(run: Path) -> tuple[Path, bytes, Path]:
    from pate.config import parse_config, read_yaml
    from pate.ledger import shared_key

    if not (run / "config.yaml").exists():
        raise RunError(f"{run}: is not a run directory")
    config: Config = parse_config(read_yaml(run / "config.yaml"))
    path, head = run / "ledger.db", run / "private" / "ledger.head"
    if config.budget.ledger is not None:
        path = Path(config.budget.ledger)
        head = path.with_name(path.name + ".head")
    if not path.exists():
        raise RunError(f"{path}: there is no ledger yet")
    if config.budget.ledger is not None:
        return path, shared_key(path), head
    return path, (run / "private" / "key").read_bytes(), head


def _print(content: dict[str, Any]) -> None:
    budget = content["budget"]
    print(content["ledger"])
    if budget["rdp_order"] is not None:
        spent = sum(charge["rdp"] for charge in content["charges"])
        print(f"shared budget: ε {budget['epsilon']:g} at δ = {budget['delta']:g}, Rényi order {budget['rdp_order']:g}")
        print(f"spent at that order, by all runs: {spent:.4g}")
    for run in content["runs"]:
        own = [charge for charge in content["charges"] if charge["run"] == run["run"]]
        asked, answered = (sum(charge[column] for charge in own) for column in ("asked", "answered"))
        print(f"run {run['run']}: {run['mechanism']}, since {run['at']}")
        print(f"  asked {asked} of {run['asked']}, answered {answered} of {run['answered']}, in {len(own)} batches")
