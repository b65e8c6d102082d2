"""Submit jobs through the jobs port of a Ray cluster's head, and download what is publishable of a run in storage."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pate.cluster._connect import use_token
from pate.errors import RunError, first_line
from pate.runs._files import MAY_LEAVE, RunFiles, may_leave
from pate.storage import open_storage, pull
from pate.storage._files import make_folder

_DEFAULT_ADDRESS = "http://127.0.0.1:8265"
_SECONDS_TO_ANSWER = (10.0, 60.0)  # until connected, and between two parts of an answer
_OVERRIDING = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # Ray prefers these to an address it is given
_TALKATIVE = ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env.packaging")
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


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
