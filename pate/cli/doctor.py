"""pate doctor."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from pate.errors import RunError
from pate.runs.console import in_a_job

if TYPE_CHECKING:
    from pate.cluster.checks import CheckResult

Found = tuple[list["CheckResult"], dict[str, dict[str, str]]]  # and each node's versions
_MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def doctor(
    address: Annotated[
        str | None,
        typer.Option(help="the head's jobs address (http://…) or, on a node, its HOST:PORT; else $RAY_ADDRESS"),
    ] = None,
    pack: Annotated[bool, typer.Option("--pack", help="send this pate along instead of using the cluster's")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")] = False,
) -> None:
    """Check a cluster: versions, also yours, a teacher on each kind of node, token, TLS, dashboard, clocks, disk,
    memory, GPUs; status 2 if something fails."""
    from pate.cluster.checks import compared
    from pate.cluster.versions import installed

    address = address or os.environ.get("RAY_ADDRESS")
    if address is None:
        raise RunError("--address: name the cluster, for example --address http://127.0.0.1:8265")
    findings, versions = _through_a_job(address, pack) if address.startswith("http") else _joined(address)
    if not in_a_job():
        findings += compared(installed(), versions)
    if as_json:
        print(json.dumps({"findings": [vars(finding) for finding in findings], "versions": versions}))
    else:
        for finding in findings:
            print(f"{_MARKS[finding.level]}  {finding.what}: {finding.text}")
    if any(finding.level == "fail" for finding in findings):
        raise typer.Exit(2)


def _joined(address: str) -> Found:
    from pate.cluster.checks import examine, judge
    from pate.cluster.session import ray_session
    from pate.config import RaySettings

    with ray_session(address, RaySettings()):
        cluster = examine()
    return judge(cluster), {node.name: node.versions for node in cluster.nodes}


def _through_a_job(address: str, pack: bool) -> Found:
    """Inspect a cluster from elsewhere, by a job on its head that prints what it finds."""
    from pate.cli.jobs import connect
    from pate.cluster.checks import CheckResult, own_token
    from pate.cluster.jobs import ERRAND

    jobs = connect(address)
    print("looking around in a job on the head …", file=sys.stderr, flush=True)
    job = jobs.start("python -m pate.cli doctor --json", {ERRAND: "doctor"}, pack=pack)
    line = next((line for line in jobs.follow(job) if line.startswith('{"findings"')), None)
    if line is None:
        raise RunError(f"{job} could not look around: {jobs.reason(jobs.info(job))}")
    content = json.loads(line)
    return [*own_token(), *(CheckResult(**finding) for finding in content["findings"])], content.get("versions", {})
