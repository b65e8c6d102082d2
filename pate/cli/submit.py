"""pate submit, jobs, logs, stop and fetch: runs on a Ray cluster somewhere else."""

from __future__ import annotations

import json
import shlex
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from pate.errors import RunError
from pate.storage import is_url

if TYPE_CHECKING:
    from pate.cluster.jobs import Job, Jobs

Address = Annotated[
    str | None,
    typer.Option(help="jobs address of the head, http://127.0.0.1:8265 through a tunnel; that is the default"),
]
JobId = Annotated[str, typer.Argument(help="the job's id, as `pate jobs` lists it")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]
Pack = Annotated[bool, typer.Option("--pack", help="send this pate along instead of using the cluster's")]


def submit(
    config: Annotated[Path, typer.Argument(help="YAML file; it is sent along with the Python files next to it")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value, for example mechanism.sigma=30")] = None,
    address: Address = None,
    data_dir: Annotated[
        str | None, typer.Option(help="where data files are, on the cluster; else its $PATE_DATA")
    ] = None,
    out: Annotated[str | None, typer.Option(help="run directory on the cluster; else ~/pate-runs/NAME-TIME")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --out")] = False,
    force: Annotated[bool, typer.Option("--force", help="train even where parts are too small")] = False,
    anchor: Annotated[
        str | None, typer.Option(help="file on the cluster, or URL, where the ledger's links are kept besides")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="where to copy what may leave the run; else runs/NAME-TIME")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="submit it, print the job's id and end")] = False,
    pack: Pack = False,
    as_json: AsJson = False,
) -> None:
    """Run a config on a cluster, follow it, and fetch what may leave the run."""
    from pate.cluster.jobs import Request
    from pate.config import load_config
    from pate.report.writing import read_report

    settings = load_config(config, set_ or ())
    if settings.budget.ledger is not None:
        raise RunError(
            "budget.ledger: a ledger that runs share stays on the machine it was made on, where the cluster does not "
            "see it; use `pate run --address` there"
        )
    if resume and out is None:
        raise RunError("--resume: name the run directory on the cluster with --out; `pate jobs` shows it")
    jobs = connect(address)
    stamp = f"{settings.name}-{datetime.now():%Y%m%d-%H%M%S}"
    place = out or f"~/pate-runs/{stamp}"
    job = jobs.submit(Request(config, set_ or (), data_dir, place, resume, force, anchor), pack)
    _say(f"job {job}, run directory on the cluster: {place}")
    if detach:
        print(json.dumps({"job": job, "run": place}) if as_json else job)
        return
    _follow(jobs, job)
    if is_url(place):
        _say(f"finished; the run is in {place}")
        return
    folder = to or Path("runs") / (Path(place).name if out else stamp)
    names = _fetch(jobs, job, place, folder, pack)
    if as_json:
        report = read_report(folder).model_dump(mode="json")
        print(json.dumps(report | {"job": job, "run": str(folder)}))
    else:
        _print_report(folder, names)


def jobs(address: Address = None, as_json: AsJson = False) -> None:
    """List the cluster's jobs, the oldest first."""
    from pate.cluster.jobs import RUN

    found = connect(address).all()
    if as_json:
        print(json.dumps({"jobs": [job.public() for job in found]}))
        return
    if not found:
        _say("no jobs yet")
    for job in found:
        started = f"{datetime.fromtimestamp(job.started):%Y-%m-%d %H:%M:%S}" if job.started else "not started"
        seconds = f"{(job.ended or time.time()) - job.started:6.0f} s" if job.started else ""
        print(f"{job.id}  {job.status:9}  {started}  {seconds}  {job.metadata.get(RUN) or '–'}".rstrip())


def logs(
    job: JobId,
    address: Address = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on until the job ends")] = False,
) -> None:
    """Print what a job has printed."""
    jobs = connect(address)
    if follow:
        _follow(jobs, job, sys.stdout)
    else:
        sys.stdout.write(jobs.log(job))


def stop(job: JobId, address: Address = None) -> None:
    """End a job; what was paid for is kept, and the run can go on later."""
    from pate.cluster.jobs import RUN

    jobs = connect(address)
    if not jobs.stop(job):
        _say(f"{job} had ended already ({jobs.info(job).status.lower()})")
        return
    deadline = time.monotonic() + 30
    while not (now := jobs.info(job)).finished and time.monotonic() < deadline:
        time.sleep(0.5)
    _say(f"{job}: {now.status.lower()}")
    if now.metadata.get(RUN):
        _say(f"go on with: pate submit CONFIG … --out {shlex.quote(now.metadata['pate_run'])} --resume")


def fetch(
    job: JobId,
    address: Address = None,
    to: Annotated[Path | None, typer.Option(help="where to; else runs/ and the run directory's name")] = None,
    pack: Pack = False,
) -> None:
    """Copy what may leave a finished run: report, labels, student."""
    jobs = connect(address)
    place = _place(jobs, jobs.info(job))
    folder = to or Path("runs") / Path(place).name
    _print_report(folder, _fetch(jobs, job, place, folder, pack))


def connect(address: str | None) -> Jobs:
    """The jobs of the cluster at `address`, or at the usual place."""
    from pate.cluster.jobs import Jobs, default_address, sends_token_in_the_clear

    address = (address or default_address()).rstrip("/")
    if not address.startswith(("http://", "https://")):
        raise RunError(f"--address {address}: the jobs address is wanted, for example http://127.0.0.1:8265")
    if sends_token_in_the_clear(address):
        _say(f"note: {address} is not encrypted, token and logs can be read on the way; better tunnel through ssh")
    return Jobs(address)


def _follow(jobs: Jobs, job: str, stream: TextIO | None = None) -> None:
    """Show what the job prints until it ends; if it fails, this program ends too, with its reason."""

    def show(text: str) -> None:
        print(text, end="", file=stream or sys.stderr, flush=True)

    try:
        ended = jobs.follow(job, show)
    except KeyboardInterrupt:
        where = f"--address {jobs.address}"
        _say(f"\ndetached; {job} goes on. Attach again: pate logs {job} --follow {where}")
        _say(f"end it: pate stop {job} {where}")
        raise typer.Exit(130) from None
    if ended.status != "SUCCEEDED":
        _say(f"pate: error: {job} {ended.status.lower()}: {jobs.reason(ended)}")
        raise typer.Exit(ended.exit_code or 1)


def _place(jobs: Jobs, job: Job) -> str:
    """Where a run is on the cluster: as it was submitted, or as `pate run` printed it in a job of another kind."""
    from pate.cluster.jobs import RUN

    if job.metadata.get(RUN):
        return job.metadata[RUN]
    lines = [line for line in jobs.log(job.id).splitlines() if line.startswith("run directory: ")]
    if not lines:
        raise RunError(f"{job.id}: has not finished a run")
    return lines[-1].removeprefix("run directory: ").split("  (")[0]


def _fetch(jobs: Jobs, job: str, place: str, folder: Path, pack: bool) -> list[str]:
    """A small job on the head prints what may leave; it is written below `folder`."""
    from pate.cluster.bundle import unpack
    from pate.cluster.jobs import ERRAND

    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder}: is not empty; choose another place with --to")
    command = shlex.join(["python", "-m", "pate.cluster.bundle", place])
    helper = jobs.start(command, {ERRAND: f"fetch {job}"}, pack=pack)
    ended = jobs.follow(helper, lambda _: None)
    if ended.status != "SUCCEEDED":
        raise RunError(f"{place} could not be fetched: {jobs.reason(ended)}")
    return unpack(jobs.log(helper), folder)


def _print_report(folder: Path, names: list[str]) -> None:
    from pate.cli.run import print_rows
    from pate.report.schema import Report
    from pate.report.terminal import summary_rows
    from pate.report.writing import read_report

    report = read_report(folder)
    assert isinstance(report, Report)
    print_rows(summary_rows(report, {})[:-1], f"fetched to {folder}: {', '.join(names)}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
