"""pate submit: run, baseline, reproduce and audit as jobs on a Ray cluster somewhere else."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from pate.cli.jobs import Address, AsJson, Pack, connect, fetch_run, follow_job, print_fetched, say
from pate.cli.options import CommandWithResume, ResumeOption, Trust, as_argument
from pate.errors import RunError
from pate.runs.console import Console
from pate.storage import is_url

if TYPE_CHECKING:
    from pate.cluster.jobs import Request

Config = Annotated[Path, typer.Argument(help="YAML file; it is sent along with the Python files next to it")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="key=value, for example mechanism.sigma=30")]
DataDir = Annotated[str | None, typer.Option(help="where data files are, on the cluster; else its $PATE_DATA")]
Out = Annotated[
    str | None,
    typer.Option(help="run directory on the cluster, or its URL (s3://, gs://, file://); else ~/pate-runs/NAME-TIME"),
]
To = Annotated[
    Path | None, typer.Option("--download-to", help="folder for the copy of what is publishable; else runs/NAME-TIME")
]
Detach = Annotated[bool, typer.Option("--detach", help="submit it, print the job's id and end")]


class _RunUnlessNamed(TyperGroup):
    """`pate submit CONFIG` is `pate submit run CONFIG`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = not args or args[0] in self.commands or args[0] in ctx.help_option_names
        parsed: list[str] = super().parse_args(ctx, args if named else ["run", *args])
        return parsed


app = typer.Typer(
    cls=_RunUnlessNamed,
    no_args_is_help=True,
    help="Run a config on a cluster, follow it, and fetch what may leave the run: `pate submit CONFIG`, or one of the "
    "commands below, which take the options of `pate` itself.",
)


@app.command(cls=CommandWithResume)
def run(
    config: Config,
    set_: Settings = None,
    address: Address = None,
    data_dir: DataDir = None,
    out: Out = None,
    resume: ResumeOption = None,
    force: Annotated[bool, typer.Option("--force", help="train even where parts are too small")] = False,
    anchor: Annotated[
        str | None,
        typer.Option(help="file on the cluster, or URL, where the ledger's links are kept besides; none, or new"),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(help="private/teachers: use teachers that the run has stored elsewhere, though they may run code"),
    ] = None,
    evaluate_teachers: Annotated[
        bool,
        typer.Option("--evaluate-teachers", help="on a benchmark, also say how often teachers are right (private)"),
    ] = False,
    to: To = None,
    detach: Detach = False,
    pack: Pack = False,
    as_json: AsJson = False,
) -> None:
    """Run a config: `pate run` on the cluster."""
    from pate.config import load_config

    settings = load_config(config, set_ or ())
    if settings.budget.ledger is not None:
        raise RunError(
            "budget.ledger: a ledger that runs share stays on the machine it was made on, where the cluster does not "
            "see it; use `pate run --address` there"
        )
    place = _run_directory(settings.name, out, resume is not None)
    options = {
        "set": set_,
        "data_dir": data_dir,
        "out": place,
        "resume": as_argument(resume),
        "force": force,
        "anchor": anchor,
        "trust": trust,
        "evaluate_teachers": evaluate_teachers,
    }
    _send(_request("run", config.name, place, config, options), address, to, detach, pack, as_json)


@app.command(cls=CommandWithResume)
def baseline(
    config: Config,
    set_: Settings = None,
    address: Address = None,
    data_dir: DataDir = None,
    out: Out = None,
    resume: ResumeOption = None,
    to: To = None,
    detach: Detach = False,
    pack: Pack = False,
    as_json: AsJson = False,
) -> None:
    """Train a private learner without teachers: `pate baseline` on the cluster."""
    from pate.config import load_baseline_config

    settings = load_baseline_config(config, set_ or ())
    place = _run_directory(settings.name, out, resume is not None)
    options = {"set": set_, "data_dir": data_dir, "out": place, "resume": as_argument(resume)}
    _send(_request("baseline", config.name, place, config, options), address, to, detach, pack, as_json)


@app.command()
def reproduce(
    data: Annotated[str, typer.Argument(help="mnist, svhn, cifar10, adult or digits")],
    address: Address = None,
    quick: Annotated[bool, typer.Option("--quick", help="one seed, fewer rows, a shorter training")] = False,
    votes: Annotated[bool, typer.Option("--votes", help="the authors' votes instead of own teachers")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="how often everything is run; 3, with --quick 1")] = None,
    rows: Annotated[
        str | None, typer.Option(help="only these rows, by name: msvec-250,gnmax-250; any other name lists all")
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="on the cluster, else ~/pate-runs/reproduce-DATA; what is there is not run again")
    ] = None,
    data_dir: DataDir = None,
    to: To = None,
    detach: Detach = False,
    pack: Pack = False,
    as_json: AsJson = False,
) -> None:
    """Run what the papers ran: `pate reproduce` on the cluster. Of it leave results.json and table.txt."""
    place = out or f"~/pate-runs/reproduce-{data}{'-votes' * votes}{'-quick' * quick}"
    options = {"quick": quick, "votes": votes, "seeds": seeds, "rows": rows, "out": place, "data_dir": data_dir}
    _send(_request("reproduce", data, place, None, options), address, to, detach, pack, as_json)


@app.command()
def audit(
    run: Annotated[str, typer.Argument(help="directory or URL of a finished run or baseline, on the cluster")],
    address: Address = None,
    attacks: Annotated[str | None, typer.Option(help="attacks to try, with commas between; all if not given")] = None,
    against: Annotated[
        list[str] | None, typer.Option(help="another run on the same data, on the cluster too; may be repeated")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="fewer examples and shadow models")] = False,
    sensitive: Annotated[
        list[str] | None, typer.Option(help="column that attribute inference guesses; may be repeated")
    ] = None,
    confidence: Annotated[float | None, typer.Option(help="of each lower bound on ε")] = None,
    data_dir: DataDir = None,
    trust: Trust = None,
    to: To = None,
    detach: Detach = False,
    pack: Pack = False,
    as_json: AsJson = False,
) -> None:
    """Attack what a run published: `pate audit` on the cluster. What it finds stays there, unless of a benchmark."""
    options: dict[str, Any] = {"attacks": attacks, "against": against, "quick": quick, "sensitive": sensitive}
    options |= {
        "confidence": confidence,
        "data_dir": data_dir,
        "trust": trust,
        "address": "auto",
    }  # the cluster that the job is on
    _send(_request("audit", run, run.rstrip("/"), None, options), address, to, detach, pack, as_json)


def _run_directory(name: str, out: str | None, resume: bool) -> str:
    if resume and out is None:
        raise RunError("--resume: name the run directory on the cluster with --out; `pate jobs` shows it")
    return out or f"~/pate-runs/{name}-{_now()}"


def _now() -> str:
    return f"{datetime.now():%Y%m%d-%H%M%S}"


def _request(command: str, about: str, place: str, config: Path | None, options: dict[str, Any]) -> Request:
    from pate.cluster.jobs import Request

    return Request(command, about, place, config, options)


def _send(request: Request, address: str | None, to: Path | None, detach: bool, pack: bool, as_json: bool) -> None:
    """Submit it, follow it and fetch what may leave it."""
    from pate.cluster.bundle import require_empty_folder
    from pate.runs.files import AUDIT, AUDIT_PAGE, REPORT, RESULTS

    place = request.run
    name = Path(place).name if request.command in ("run", "baseline") else f"{Path(place).name}-{_now()}"
    folder = to or Path("runs") / name
    if not detach:
        require_empty_folder(folder)
    jobs = connect(address)
    job = jobs.submit(request, pack)
    say(f"job {job}, {'results' if request.command == 'reproduce' else 'run directory'} on the cluster: {place}")
    if detach:
        print(json.dumps({"job": job, "run": place}) if as_json else job)
        return
    follow_job(jobs, job, Console())
    names = fetch_run(jobs, job, place, folder, pack)
    if request.command == "audit" and AUDIT not in names:
        where = place if is_url(place) else f"the cluster, in {place}"
        say(f"what the audit found is about private records: it stays on {where}/private/{AUDIT_PAGE}")
    if as_json:
        wanted = {"audit": AUDIT, "reproduce": RESULTS}.get(request.command, REPORT)
        content = json.loads((folder / wanted).read_text(encoding="utf-8")) if wanted in names else {}
        print(json.dumps(content | {"job": job, "run": str(folder)}))
    else:
        print_fetched(folder, names)
