"""pate doctor."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from pate.cli._options import AsJson
from pate.errors import RunError
from pate.runs._console import in_a_job

if TYPE_CHECKING:
    from pate.cluster._checks import CheckResult

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
    from pate.cluster._checks import examine, judge
    from pate.cluster._session import ray_session
    from pate.config import RaySettings

    with ray_session(address, RaySettings()):
        cluster = examine()
    return judge(cluster), {node.name: node.versions for node in cluster.nodes}


def _by_job(address: str, pack: bool) -> tuple[list[CheckResult], dict[str, dict[str, str]]]:
    """What `_joined` returns, from a job on the head."""
    from pate.cluster._checks import CheckResult, own_token
    from pate.cluster._jobs import Jobs

    jobs = Jobs(address, lambda note: print(note, file=sys.stderr))
    print("checking in a job on the head …", file=sys.stderr, flush=True)
    job, lines = jobs.start("python -m pate.cli doctor --json", pack=pack), list[str]()
    jobs.follow(job, lines.append)
    content = next((json.loads(line) for line in lines if line.startswith('{"findings"')), None)
    if content is None:
        raise RunError(f"{job} failed; see ray job logs {job} --address {jobs.address}")
    return [*own_token(), *(CheckResult(**result) for result in content["findings"])], content["versions"]
