"""Jobs on a Ray cluster, through the jobs port of its head."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pate.cluster.connect import use_token
from pate.cluster.following import SECONDS_OF_SILENCE, Unreachable, follow
from pate.cluster.metrics import RUN_ID, STAGE
from pate.cluster.versions import different_versions, ray_and_python_versions
from pate.errors import RunError

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
RUN = "pate_run"  # in a job's metadata: where its run directory is, on the cluster
COMMAND = "pate_command"  # the same: run, baseline, reproduce or audit
ERRAND = "pate_errand"  # the same: a small job that fetches or checks something
_SECONDS_TO_ANSWER = (10.0, 60.0)  # until connected, and between two parts of an answer
_SECONDS_BETWEEN_TRIES = 2.0
_OVERRIDING = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # Ray prefers these to an address it is given
_TALKATIVE = ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env.packaging")
_ERROR = "pate: error: "
_LISTED = ("id", "status", "started", "ended", "exit_code")


def default_address() -> str:
    """The jobs address in Ray's own variables, else the usual one on this machine (a tunnel's end, perhaps)."""
    named = [os.environ.get(name, "") for name in _OVERRIDING]
    return next((address for address in named if address.startswith("http")), DEFAULT_ADDRESS)


def sends_token_unencrypted(address: str) -> bool:
    """Whether the token would cross a network unencrypted: the jobs port speaks plain HTTP."""
    parts = urlsplit(address)
    return parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Job:
    """What is known of a job."""

    id: str
    status: str
    entrypoint: str
    message: str
    metadata: dict[str, str]
    started: float | None
    ended: float | None
    exit_code: int | None

    @property
    def finished(self) -> bool:
        """Whether it has ended, well or not."""
        return self.status in ("SUCCEEDED", "FAILED", "STOPPED")

    def public(self) -> dict[str, Any]:
        """What a listing may show: neither the command line, which names data, nor words out of the job's log."""
        told = {"run": self.metadata.get(RUN) or None, "run_id": self.metadata.get(RUN_ID), "stage": self.stage}
        return {name: getattr(self, name) for name in _LISTED} | told

    @property
    def stage(self) -> str | None:
        """What its run is at, or was at last; None where it has not said so."""
        return self.metadata.get(STAGE)


@dataclass(frozen=True)
class Request:
    """A command of pate to submit: what it is about, and where its results will be on the cluster.

    Paths are those on the cluster, except `config`, which is sent along. `options` have the names of the command
    line: None and False are left out, True stands alone, a list is repeated.
    """

    command: str
    about: str
    run: str
    config: Path | None = None
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def entrypoint(self) -> str:
        """The command line of the job. It logs as JSON lines, from which bars can be drawn elsewhere."""
        words = ["python", "-m", "pate.cli", self.command, self.about]
        for name, value in self.options.items():
            option = f"--{name.replace('_', '-')}"
            for one in value if isinstance(value, list) else [value]:
                if one is True:
                    words += [option]
                elif name == "resume" and one:  # its value may be left out, so it stands in the same word
                    words += [f"{option}={one}"]
                elif one is not None and one is not False:
                    words += [option, str(one)]
        return shlex.join([*words, "--log-json"])


class Jobs:
    """The jobs of the cluster whose jobs port is at `address`."""

    def __init__(self, address: str) -> None:
        for name in _OVERRIDING:
            os.environ.pop(name, None)
        use_token()
        from ray.job_submission import JobSubmissionClient

        for module in _TALKATIVE:
            logging.getLogger(f"ray.{module}").setLevel(logging.ERROR)
        self.address = address
        self.mismatch = ""
        with self._named_errors():
            self._client = JobSubmissionClient(address)
            self._client._do_request = partial(self._client._do_request, timeout=_SECONDS_TO_ANSWER)
            self.mismatch = different_versions(ray_and_python_versions(), self.versions())

    def versions(self) -> dict[str, str]:
        """The cluster's versions of Ray and Python, as far as the head tells."""
        answer = self._client._do_request("GET", "/api/v0/cluster_metadata")
        found = answer.json().get("data", {}) if answer.ok else {}
        return {name: found[key] for name, key in (("ray", "rayVersion"), ("python", "pythonVersion")) if key in found}

    def submit(self, request: Request, pack: bool = False) -> str:
        """Submit a command; returns the job's id."""
        metadata = {RUN: request.run, COMMAND: request.command}
        return self.start(request.entrypoint, metadata, config=request.config, pack=pack)

    def start(self, entrypoint: str, metadata: dict[str, str], config: Path | None = None, pack: bool = False) -> str:
        """Start a command on the head with the config, Python files next to it and, with `pack`, this package."""
        with tempfile.TemporaryDirectory(prefix="pate-submit-") as folder, self._named_errors():
            lay_out(Path(folder), config, pack)
            environment = {"working_dir": folder} if config is not None or pack else {}
            return str(self._client.submit_job(entrypoint=entrypoint, runtime_env=environment, metadata=metadata))

    def info(self, job: str) -> Job:
        """What the head says of a job."""
        with self._named_errors(job):
            return _job(self._client.get_job_info(job))

    def all(self) -> list[Job]:
        """Every submitted job, the oldest first, without the small ones by which this program fetches and checks."""
        with self._named_errors():
            found = [_job(details) for details in self._client.list_jobs() if details.submission_id]
        return sorted((job for job in found if ERRAND not in job.metadata), key=lambda job: job.started or 0)

    def log(self, job: str) -> str:
        """All that the job has printed."""
        with self._named_errors(job):
            return str(self._client.get_job_logs(job))

    def stop(self, job: str) -> bool:
        """Ask a job to end; False if it had ended already."""
        with self._named_errors(job):
            return bool(self._client.stop_job(job))

    def follow(self, job: str, say: Callable[[str], None] = lambda _: None) -> Iterator[str]:
        """The lines that a job prints, until it ends; see `pate.cluster.following`."""
        return follow(self, self._client, job, say)

    def file(self, node: str, name: str) -> bytes:
        """A file below a node's folder of logs; asked for again where the connection is lost, for five minutes."""
        wanted = {"node_id": node, "filename": name, "lines": -1, "timeout": 600}
        deadline = time.monotonic() + SECONDS_OF_SILENCE
        while True:
            try:
                with self._named_errors():
                    answer = self._client._do_request("GET", "/api/v0/logs/file", params=wanted)
                    if answer.ok:
                        return bytes(answer.content)
                    if "file is not found" in answer.text:
                        raise RunError("what was to be fetched is gone from the head; fetch it again")
                    self._client._raise_error(answer)
            except Unreachable:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_SECONDS_BETWEEN_TRIES)

    def reason(self, job: Job) -> str:
        """Why it ended as it did, in one line."""
        return reason(job, self.log(job.id))

    @contextmanager
    def _named_errors(self, job: str | None = None) -> Iterator[None]:
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as error:
            kind = "the wrong token" if "invalid" in str(error).lower() else "no token"
            raise RunError(
                f"{{address}}: refused, {kind} was sent; name the file of the cluster's token in RAY_AUTH_TOKEN_PATH",
                address=self.address,
            ) from None
        except ConnectionError:
            raise Unreachable(
                "{address}: no Ray head answers there; for a cluster elsewhere first run "
                "ssh -N -L 8265:127.0.0.1:8265 HEAD, or ray dashboard CLUSTER.yaml",
                address=self.address,
            ) from None
        except (RuntimeError, ValueError, OSError) as error:
            if job is not None and "404" in str(error):
                raise RunError(f"{job}: there is no such job; `pate jobs` lists them") from None
            away = isinstance(error, OSError) or "status code 5" in str(error)
            text = f"{{address}}: {_first_line(str(error))}" + (f"; {self.mismatch}" if self.mismatch else "")
            raise (Unreachable if away else RunError)(text, address=self.address) from None


def lay_out(folder: Path, config: Path | None, pack: bool) -> None:
    """What is sent to the cluster: never data, runs or anything else that happens to lie around."""
    if config is not None:
        for path in [config, *sorted(config.parent.glob("*.py"))]:
            shutil.copy(path, folder / path.name)
    if pack:
        here = Path(__file__).parent.parent
        shutil.copytree(here, folder / here.name, ignore=shutil.ignore_patterns("__pycache__"))


def reason(job: Job, log: str) -> str:
    """The line in which pate says what was wrong, else where to look. Ray's own message would quote the job's log.

    >>> job = Job("j", "FAILED", "", "Job entrypoint command failed with exit code 2, last lines: a\\nb", {}, 0, 1, 2)
    >>> reason(job, "starting\\npate: error: n_teachers = 0: at least 1\\n")
    'n_teachers = 0: at least 1'
    >>> reason(job, "")
    'ended with status 2; `pate logs j` shows what it printed'
    """
    errors = [line.strip() for line in log.splitlines() if line.startswith(_ERROR)]
    if errors and job.status == "FAILED":
        return errors[-1].removeprefix(_ERROR)
    if job.exit_code is None:  # it never began, or was stopped
        return " ".join(job.message.split())[-400:] or job.status.lower()
    return f"ended with status {job.exit_code}; `pate logs {job.id}` shows what it printed"


def _job(details: Any) -> Job:
    return Job(
        id=str(details.submission_id),
        status=str(getattr(details.status, "value", details.status)),
        entrypoint=details.entrypoint,
        message=details.message or "",
        metadata=dict(details.metadata or {}),
        started=details.start_time / 1000 if details.start_time else None,
        ended=details.end_time / 1000 if details.end_time else None,
        exit_code=details.driver_exit_code,
    )


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "failed")[:400]
