"""A Ray cluster elsewhere: pate doctor checks it, pate submit runs a command on it, pate fetch downloads."""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from pate.cli._options import AsJson
from pate.cluster._interrupts import advising
from pate.errors import RunError, first_line
from pate.runs._console import in_a_job
from pate.runs._files import (
    AUDIT,
    AUDIT_PAGE,
    LABELS,
    MAY_LEAVE,
    MODEL,
    OF_A_STUDY,
    PAGE,
    PLOTS,
    REPORT,
    STATEMENT,
    STUDENT,
    RunFiles,
    may_leave,
)
from pate.storage import is_url, open_storage, pull
from pate.storage._files import make_folder

if TYPE_CHECKING:
    from pate.cluster._checks import CheckResult


_DEFAULT_ADDRESS = "http://127.0.0.1:8265"
_SECONDS_TO_ANSWER = (10.0, 60.0)  # until connected, and between two parts of an answer
_OVERRIDING = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # Ray prefers these to an address it is given
_TALKATIVE = ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env.packaging")
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
_MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def doctor(
    address: Annotated[
        str | None,
        typer.Option(help="the head's jobs address (http://…) or, on a node, its HOST:PORT; else $RAY_ADDRESS"),
    ] = None,
    pack: Annotated[bool, typer.Option("--pack", help="send this pate along instead of using the cluster's")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a cluster: versions, also yours, a teacher on each kind of node, token, TLS, dashboard, clocks, disk,
    memory, GPUs; status 2 if something fails."""
    from pate.cluster._checks import compare_versions, installed

    address = address or os.environ.get("RAY_ADDRESS")
    if address is None:
        raise RunError("--address: name the cluster, for example --address http://127.0.0.1:8265")
    results, versions = _by_job(address, pack) if address.startswith("http") else _joined(address)
    if not in_a_job():
        results += compare_versions(installed(), versions)
    if as_json:
        print(json.dumps({"findings": [vars(result) for result in results], "versions": versions}))
    else:
        for result in results:
            print(f"{_MARKS[result.level]}  {result.what}: {result.text}")
    if any(result.level == "fail" for result in results):
        raise typer.Exit(2)


def _joined(address: str) -> tuple[list[CheckResult], dict[str, dict[str, str]]]:
    """Results of the checks, and each node's versions."""
    from pate.cluster._checks import examine
    from pate.cluster._session import ray_session
    from pate.config import RaySettings

    with ray_session(address, RaySettings()):
        return examine()


def _by_job(address: str, pack: bool) -> tuple[list[CheckResult], dict[str, dict[str, str]]]:
    """What `_joined` returns, from a job on the head."""
    from pate.cluster._checks import CheckResult, own_token

    jobs = Jobs(address, lambda note: print(note, file=sys.stderr))
    print("checking in a job on the head …", file=sys.stderr, flush=True)
    job, lines = jobs.start("python -m pate.cli doctor --json", pack=pack), list[str]()
    jobs.follow(job, lines.append)
    content = next((json.loads(line) for line in lines if line.startswith('{"findings"')), None)
    if content is None:
        raise RunError(f"{job} failed; see ray job logs {job} --address {jobs.address}")
    return [*own_token(), *(CheckResult(**result) for result in content["findings"])], content["versions"]


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


def _sends_token_unencrypted(address: str) -> bool:
    """Whether the token would cross a network unencrypted: the jobs port speaks plain HTTP."""
    parts = urlsplit(address)
    return parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "localhost", "::1")


class Jobs:
    """Ray's `JobSubmissionClient`, whose errors are one line each.

    Parameters
    ----------
    address
        Jobs address of the head. Default: the one in Ray's own variables, else port 8265 of this machine, where a
        tunnel may end.
    notify
        Is told what the user should know of the connection.
    """

    def __init__(self, address: str | None, notify: Callable[[str], None]) -> None:
        named = [address or "", *(os.environ.pop(name, "") for name in _OVERRIDING)]
        self.address = (address or next((a for a in named if a.startswith("http")), _DEFAULT_ADDRESS)).rstrip("/")
        if not self.address.startswith(("http://", "https://")):
            raise RunError(f"--address {address}: is no jobs address; write one like {_DEFAULT_ADDRESS}")
        if _sends_token_unencrypted(self.address):
            notify(f"note: {self.address} is not encrypted: others can read token and logs; better tunnel through ssh")
        from pate.cluster._session import use_token

        use_token()
        import ray
        from ray.job_submission import JobSubmissionClient

        for module in _TALKATIVE:
            logging.getLogger(f"ray.{module}").setLevel(logging.ERROR)
        with self._errors():
            self._client = JobSubmissionClient(self.address)
            self._client._do_request = partial(self._client._do_request, timeout=_SECONDS_TO_ANSWER)
        theirs = getattr(self._client, "_server_ray_version", None)
        if theirs not in (None, ray.__version__):
            notify(f"note: this machine has Ray {ray.__version__}, the cluster Ray {theirs}")

    def start(self, entrypoint: str, config: Path | None = None, pack: bool = False) -> str:
        """Start a command on the head with the config, Python files beside it and, with `pack`, this package.

        Returns the job's id.
        """
        with tempfile.TemporaryDirectory(prefix="pate-submit-") as folder, self._errors():
            _lay_out(Path(folder), config, pack)
            environment = {"working_dir": folder} if config is not None or pack else {}
            return str(self._client.submit_job(entrypoint=entrypoint, runtime_env=environment))

    def follow(self, job: str, show: Callable[[str], None]) -> Any:
        """Pass each line that the job prints to `show`, until it ends; returns Ray's `JobDetails`."""

        async def tail() -> None:
            rest = ""
            async for text in self._client.tail_job_logs(job):
                *lines, rest = (rest + text).split("\n")
                for line in lines:
                    show(line)
            if rest:
                show(rest)

        with self._errors(f"; follow it again: ray job logs {job} --follow --address {self.address}"):
            import asyncio

            asyncio.run(tail())
            details = self._client.get_job_info(job)
            if details.status not in _ENDED:
                raise ConnectionError
        return details

    @contextmanager
    def _errors(self, advice: str = "") -> Iterator[None]:
        """Ray's errors as RunError: what it says in many lines is one here."""
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as error:
            kind = "the wrong token" if "invalid" in str(error).lower() else "no token"
            text = f"{{address}}: refused, {kind} was sent; name the file of the cluster's token in RAY_AUTH_TOKEN_PATH"
            raise RunError(text, address=self.address) from None
        except (RuntimeError, ValueError, OSError) as error:
            text = f"{{address}}: {first_line(error)}{advice}"
            if advice and (isinstance(error, OSError) or "WebSocket" in str(error)):
                text = f"{{address}}: lost the connection{advice}"
            elif isinstance(error, ConnectionError):
                text = "{address}: no Ray head answers there; for a cluster elsewhere first run "
                text += "ssh -N -L 8265:127.0.0.1:8265 HEAD, or ray dashboard CLUSTER.yaml"
            raise RunError(text, address=self.address) from None


def _lay_out(folder: Path, config: Path | None, pack: bool) -> None:
    """What is sent to the cluster: never data, runs or anything else that happens to lie around."""
    if config is not None:
        for path in [config, *sorted(config.parent.glob("*.py"))]:
            shutil.copy(path, folder / path.name)
    if pack:
        here = Path(__file__).parent.parent
        shutil.copytree(here, folder / here.name, ignore=shutil.ignore_patterns("__pycache__"))


def require_empty_folder(folder: Path) -> None:
    """Raise RunError if something is in the way."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder}: is not empty; choose another place with {{download_to}}", download_to=None)


def download(url: str, folder: Path) -> list[str]:
    """Copy what is publishable of the run in storage to a new folder, whole or not at all; returns the names."""
    require_empty_folder(folder)
    partial_copy = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial_copy, ignore_errors=True)
    make_folder(partial_copy)
    try:
        pull(open_storage(url), partial_copy, may_leave)
        if not RunFiles(partial_copy).report_file.exists():
            raise RunError(f"{url}: no finished run is seen there from this machine")
        partial_copy.rename(folder)
    finally:
        shutil.rmtree(partial_copy, ignore_errors=True)
    return [name for name in MAY_LEAVE if (folder / name).exists()]
