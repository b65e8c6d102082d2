"""pate submit and pate fetch: a command of pate as a job on a Ray cluster elsewhere, and its publishable files here."""

from __future__ import annotations

import json
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from pate.cli._options import AsJson
from pate.cluster._interrupts import advising
from pate.errors import RunError
from pate.runs._files import AUDIT, AUDIT_PAGE, LABELS, MODEL, OF_A_STUDY, PAGE, PLOTS, REPORT, STATEMENT, STUDENT
from pate.storage import is_url

PASS_ON = {"ignore_unknown_options": True}
"""For typer: options that `pate submit` does not have are those of the command that it submits."""

_PUBLISHABLE = {  # by command: what it makes that may be copied from the head
    "run": (REPORT, PAGE, STATEMENT, PLOTS, LABELS, STUDENT),
    "baseline": (REPORT, PAGE, STATEMENT, PLOTS, MODEL),
    "reproduce": OF_A_STUDY,
    "audit": (AUDIT, AUDIT_PAGE),  # of a benchmark only
}
_PLACE = "run directory: "  # what `pate run` and `pate baseline` print before it

Address = Annotated[
    str | None,
    typer.Option(help="jobs address of the head, http://127.0.0.1:8265 through a tunnel; that is the default"),
]
DownloadTo = Annotated[
    Path | None, typer.Option(help="folder for the publishable files of a run in storage; else runs/NAME")
]
Pack = Annotated[bool, typer.Option("--pack", help="send this pate along instead of using the cluster's")]


def submit(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG | COMMAND …",
            help="a config, sent along with the Python files beside it, and options of `pate run` for the cluster "
            "(--set, --data-dir, --out …); or baseline, reproduce or audit with theirs",
        ),
    ],
    address: Address = None,
    download_to: DownloadTo = None,
    detach: Annotated[bool, typer.Option("--detach", help="submit it, print the job's id and end")] = False,
    pack: Pack = False,
    as_json: AsJson = False,
) -> None:
    """Run a config as a job on a Ray cluster, follow it, and download what is publishable or say how to copy it.

    `ray job list`, `ray job logs JOB` and `ray job stop JOB` do the rest.
    """
    from pate.cluster._jobs import Jobs, require_empty_folder

    request = _request(words)
    folder = download_to or Path("runs") / Path(request.place).name
    if is_url(request.place) and not detach:
        require_empty_folder(folder)
    elif download_to is not None:
        later = f"pate fetch {request.place}" if is_url(request.place) else "--out s3://…, gs:// or file://"
        raise RunError(f"--download-to: what is downloaded comes from storage, at the end; use {later}")
    jobs = Jobs(address, _note)
    job = jobs.start(request.entrypoint, request.config, pack)
    _note(f"job {job}, results on the cluster: {request.place}")
    if detach:
        print(json.dumps({"job": job, "run": request.place}) if as_json else job)
        return
    place = _follow(jobs, job) or request.place
    if is_url(place):
        _download(place, folder, {"job": job} if as_json else None)
    elif as_json:
        print(json.dumps({"job": job, "run": place}))
    else:
        print("\n".join(_copy_commands(_PUBLISHABLE[request.command], place, folder)))


def fetch(
    url: Annotated[str, typer.Argument(help="a finished run in storage: s3://, gs:// or file://")],
    download_to: DownloadTo = None,
    as_json: AsJson = False,
) -> None:
    """Download what is publishable of a run in storage: report, labels, student."""
    if not is_url(url):
        raise RunError(f"{url}: is no URL; from a cluster's head copy single files, with ray rsync-down or kubectl cp")
    _download(url, download_to or Path("runs") / Path(url).name, {} if as_json else None)


class _Request(NamedTuple):
    """What to submit: a command, the config it needs, and where its results will be on the cluster."""

    command: str
    entrypoint: str
    config: Path | None
    place: str


def _request(words: list[str]) -> _Request:
    """The job for what is on the command line. Mistakes in it, and in a config, are found here, before it is sent."""
    from pate.cli import app
    from pate.config import load_baseline_config, load_config

    command, *words = words if words[0] in _PUBLISHABLE else ["run", *words]
    parser: Any = typer.main.get_command(app)
    given: Any = parser.commands[command].make_context(f"pate {command}", list(words)).params
    config, place = given.get("config"), given.get("out")
    if command == "audit":
        place = given["run"]
        words += ["--address", "auto"]  # the cluster that the job is on
    elif place is None and given.get("resume"):
        raise RunError("--resume: name the run directory on the cluster with --out")
    elif command == "reproduce" and place is None:  # always the same, since what is there is not run again
        kinds = [name for name, value in given.items() if value is True]
        place = "-".join(["~/pate-runs/reproduce", given["data"], *kinds])
        words += ["--out", place]
    if command in ("run", "baseline"):
        settings: Any = (load_config if command == "run" else load_baseline_config)(config, given["set_"] or ())
        if command == "run" and settings.budget.ledger is not None:
            raise RunError(
                "budget.ledger: a ledger that runs share stays on the machine it was made on, where the cluster does "
                "not see it; use `pate run --address` there"
            )
        if place is None:
            place = f"~/pate-runs/{settings.name}-{datetime.now():%Y%m%d-%H%M%S}"
            words += ["--out", place]
    if config is not None:  # it is sent along, to the folder that the job starts in
        words = [config.name if Path(word) == config else word for word in words]
    return _Request(command, shlex.join(["python", "-m", "pate.cli", command, *words]), config, str(place).rstrip("/"))


def _follow(jobs: Any, job: str) -> str | None:
    """Show what the job prints until it ends; if it fails, this program ends with its status.

    Returns the run directory that it printed.
    """
    from pate.runs._console import printable

    place = None

    def show(line: str) -> None:
        nonlocal place
        if line.startswith(_PLACE):
            place = line.removeprefix(_PLACE).split("  (")[0]
        _note(printable(line.expandtabs()))

    where = f"{job} --address {jobs.address}"
    with advising(lambda: f"; {job} goes on. Follow it: ray job logs --follow {where}; end it: ray job stop {where}"):
        ended = jobs.follow(job, show)
    if ended.status != "SUCCEEDED":
        began = ended.driver_exit_code is not None  # else Ray's message says why not; later it would quote the log
        reason = f"status {ended.driver_exit_code}" if began else " ".join((ended.message or "").split())[-400:]
        _note(f"pate: error: {job} {ended.status.lower()}: {reason}")
        raise typer.Exit(ended.driver_exit_code or 1)
    return place


def _download(url: str, folder: Path, as_json: dict[str, str] | None) -> None:
    """Download a run and show its figures: on standard output, or as JSON together with what is known already."""
    from pate.cli._run import print_rows
    from pate.cluster._jobs import download
    from pate.report._files import read_report, summary_rows

    names = download(url, folder)
    report = read_report(folder)
    if as_json is not None:
        print(json.dumps(report.model_dump(mode="json") | as_json | {"run": str(folder)}))
        return
    print_rows(summary_rows(report), f"downloaded to {folder}: {', '.join(names)}")


def _copy_commands(names: tuple[str, ...], place: str, folder: Path) -> list[str]:
    """Commands that copy single publishable files of a run from the head, never its folder with `private/`."""
    source, target, each = shlex.quote(place), shlex.quote(str(folder)), f"for name in {' '.join(names)}; do"
    pod = "$(kubectl get pods -n pate -l ray.io/node-type=head -o jsonpath='{.items[0].metadata.name}')"
    to = f"mkdir -p {target}; {each}"
    return [
        "copy what is publishable, and nothing else, with the cluster launcher:",
        f"  {to} ray rsync-down CLUSTER.yaml {source}/$name {target}/; done",
        "or from Kubernetes:",
        f"  pod={pod}; {to} kubectl cp -n pate -c ray-head $pod:{source}/$name {target}/$name; done",
    ]


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
