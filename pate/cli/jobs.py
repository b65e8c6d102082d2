"""pate jobs, logs, stop and fetch: what runs on a Ray cluster somewhere else."""

from __future__ import annotations

import json
import shlex
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pate.cluster.interrupts import advising
from pate.errors import RunError
from pate.runs.console import Console, Replay
from pate.storage import is_url

if TYPE_CHECKING:
    from pate.cluster.bundle import Offer
    from pate.cluster.jobs import Job, Jobs

Address = Annotated[
    str | None,
    typer.Option(help="jobs address of the head, http://127.0.0.1:8265 through a tunnel; that is the default"),
]
JobId = Annotated[str, typer.Argument(help="the job's id, as `pate jobs` lists it")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]
Pack = Annotated[bool, typer.Option("--pack", help="send this pate along instead of using the cluster's")]
_GO_ON = {  # how to go on with what was stopped, by command
    "run": "pate submit CONFIG … --out {} --resume",
    "baseline": "pate submit baseline CONFIG … --out {} --resume",
    "reproduce": "pate submit reproduce … --out {}",
    "audit": "pate submit audit {} …",
}


def jobs(address: Address = None, as_json: AsJson = False) -> None:
    """List the cluster's jobs, the oldest first."""
    from pate.cluster.jobs import RUN

    found = connect(address).all()
    if as_json:
        print(json.dumps({"jobs": [job.public() for job in found]}))
        return
    if not found:
        say("no jobs yet")
    for job in found:
        started = f"{datetime.fromtimestamp(job.started):%Y-%m-%d %H:%M:%S}" if job.started else "not started"
        seconds = f"{(job.ended or time.time()) - job.started:6.0f} s" if job.started else ""
        at = job.stage if job.stage and not job.finished else ""
        print(f"{job.id}  {job.status:9}  {at:8}  {started}  {seconds}  {job.metadata.get(RUN) or '–'}".rstrip())


def logs(
    job: JobId,
    address: Address = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on until the job ends")] = False,
) -> None:
    """Print what a job has printed."""
    jobs = connect(address)
    console = Console(stderr=False)
    if follow:
        follow_job(jobs, job, console)
        return
    with Replay(console) as replay:
        for line in jobs.log(job).splitlines():
            replay.show(line)


def stop(job: JobId, address: Address = None) -> None:
    """End a job; what was paid for is kept, and the run can go on later."""
    from pate.cluster.jobs import COMMAND, RUN

    jobs = connect(address)
    if not jobs.stop(job):
        say(f"{job} had ended already ({jobs.info(job).status.lower()})")
        return
    deadline = time.monotonic() + 30
    while not (now := jobs.info(job)).finished and time.monotonic() < deadline:
        time.sleep(0.5)
    say(f"{job}: {now.status.lower()}")
    if now.metadata.get(RUN):
        say("go on with: " + _GO_ON[now.metadata.get(COMMAND, "run")].format(shlex.quote(now.metadata[RUN])))


def fetch(
    job: JobId,
    address: Address = None,
    to: Annotated[
        Path | None, typer.Option("--download-to", help="where to; else runs/ and the run directory's name")
    ] = None,
    pack: Pack = False,
) -> None:
    """Copy what may leave a finished run: report, labels, student."""
    jobs = connect(address)
    place = _place(jobs, jobs.info(job))
    folder = to or Path("runs") / Path(place).name
    print_fetched(folder, fetch_run(jobs, job, place, folder, pack))


def connect(address: str | None) -> Jobs:
    """The jobs of the cluster at `address`, or at the usual place."""
    from pate.cluster.jobs import Jobs, default_address, sends_token_unencrypted

    address = (address or default_address()).rstrip("/")
    if not address.startswith(("http://", "https://")):
        raise RunError(f"--address {address}: the jobs address is wanted, for example http://127.0.0.1:8265")
    if sends_token_unencrypted(address):
        say(f"note: {address} is not encrypted, token and logs can be read on the way; better tunnel through ssh")
    jobs = Jobs(address)
    if jobs.mismatch:
        say(f"note: {jobs.mismatch}")
    return jobs


def follow_job(jobs: Jobs, job: str, console: Console) -> None:
    """Show what the job prints until it ends; if it fails, this program ends too, with its reason."""
    where = f"--address {jobs.address}"
    again = f"; {job} goes on. Attach again: pate logs {job} --follow {where}; end it: pate stop {job} {where}"
    with advising(lambda: again), Replay(console) as replay:
        for line in jobs.follow(job, say):
            replay.show(line)
    ended = jobs.info(job)
    if ended.status != "SUCCEEDED":
        say(f"pate: error: {job} {ended.status.lower()}: {jobs.reason(ended)}")
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


def fetch_run(jobs: Jobs, job: str, place: str, folder: Path, pack: bool) -> list[str]:
    """Copy what may leave a run to `folder`, from storage or, by a small job there, from the head; returns names."""
    from pate.cluster.bundle import copy_from_storage, require_empty_folder, unpack
    from pate.cluster.jobs import ERRAND

    if is_url(place):
        return copy_from_storage(place, folder)
    require_empty_folder(folder)
    command = shlex.join(["python", "-m", "pate.cluster.bundle", place])
    errand = jobs.start(command, {ERRAND: f"fetch {job}"}, pack=pack)
    try:
        offer = _offer(jobs, errand, place)
        console = Console()
        with console.track("fetching", len(offer.pieces)) as update:

            def piece(number: int) -> bytes:
                content = jobs.file(offer.node, f"{offer.folder}/{number}")
                update(number + 1)
                return content

            return unpack(piece, offer.pieces, folder)
    finally:
        with suppress(RunError):  # it ends by itself after an hour
            jobs.stop(errand)


def _offer(jobs: Jobs, errand: str, place: str) -> Offer:
    """What the small job offers, once it has laid it out."""
    from pate.cluster.bundle import Offer

    for line in jobs.follow(errand, say):
        if offer := Offer.said(line):
            return offer
    raise RunError(f"{place} could not be fetched: {jobs.reason(jobs.info(errand))}")


def print_fetched(folder: Path, names: list[str]) -> None:
    """What was fetched, and the figures in it, on standard output."""
    from pate.cli.run import print_rows
    from pate.report.reading import read_report
    from pate.report.schema import Report
    from pate.report.terminal import baseline_rows, summary_rows
    from pate.runs.files import REPORT, TABLE

    last = f"fetched to {folder}: {', '.join(names)}"
    if REPORT not in names:  # a study
        print((folder / TABLE).read_text(encoding="utf-8"))
        print(last)
        return
    report = read_report(folder)
    rows = summary_rows(report) if isinstance(report, Report) else baseline_rows(report)
    print_rows(rows[:-1], last)  # the seconds of its stages stay where it ran


def say(text: str) -> None:
    """A note on standard error."""
    print(text, file=sys.stderr, flush=True)
