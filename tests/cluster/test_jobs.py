"""Jobs on a real cluster of two nodes with a token: the one that `cluster/one_machine.sh` starts."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray
from support import REPOSITORY
from support.command_line import TINY, in_process

from pate.report.schema import Report

SMALL = [*TINY, "--set", "ray.workers=1"]
DIGITS = str(REPOSITORY / "configs" / "digits.yaml")


@dataclass(frozen=True)
class Head:
    jobs: str
    gcs: str
    folder: Path
    environment: dict[str, str]

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=900,
            cwd=REPOSITORY,
            env=self.environment | environment,
        )

    def pate(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "pate.cli", *arguments, "--address", self.jobs, **environment)

    def script(self, code: str, *before: str) -> subprocess.CompletedProcess[str]:
        """Python code in a process of its own, with the jobs address as its argument."""
        path = f"{REPOSITORY / 'tests'}:{REPOSITORY}:{self.environment.get('PYTHONPATH', '')}"
        return self.run(*before, sys.executable, "-c", textwrap.dedent(code), self.jobs, PYTHONPATH=path)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """A head and a worker on loopback, with a token; ended by their process group."""
    folder = Path(tempfile.mkdtemp(prefix="pate-", dir="/tmp"))  # Ray's sockets want a short path
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment |= {"HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    (folder / "home").mkdir()
    log = folder / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [str(REPOSITORY / "cluster" / "one_machine.sh"), str(folder / "ray")],
            stdout=stream,
            stderr=stream,
            env=environment,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 120
        while "pate doctor" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "ray" / "auth_token")}
        jobs = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        gcs = re.search(r"127\.0\.0\.2:\d+", log.read_text())
        assert jobs
        assert gcs
        yield Head(jobs[0], gcs[0], folder, environment | token)
    finally:
        process.terminate()
        process.wait(timeout=300)
        shutil.rmtree(folder, ignore_errors=True)


def test_submit_runs_follows_and_downloads(head: Head) -> None:
    to, store = head.folder / "downloaded", f"file://{head.folder}/store/one"
    shown = head.pate("submit", DIGITS, *SMALL, "--out", store, "--download-to", str(to), "--json")
    assert shown.returncode == 0, shown.stderr
    assert "ε to publish" in shown.stderr  # the job's own words
    content = json.loads(shown.stdout)
    assert Report.model_validate_json((to / "report.json").read_text()).queries.asked == 40
    assert content["run"] == str(to)
    public = {"report.json", "report.html", "privacy.txt", "plots", "labels.npz", "student"}
    assert {path.name for path in to.iterdir()} == public
    assert (head.folder / "store" / "one" / "private").is_dir()  # stays there
    listed = head.run("ray", "job", "list", "--address", head.jobs)
    assert content["job"] in listed.stdout
    assert "'pate_stage': 'report'" in listed.stdout  # what it was at last
    assert "'pate_run_id': '" in listed.stdout
    again = head.folder / "again"
    fetched = in_process("fetch", store, "--download-to", again)
    assert fetched.returncode == 0, fetched.stderr
    assert "40 asked" in fetched.stdout
    assert {path.name for path in again.iterdir()} == public


@pytest.mark.slow
def test_workers_are_as_nice_as_whoever_started_the_cluster(head: Head) -> None:
    code = f"""import os, ray
ray.init(address="{head.gcs}", log_to_driver=False, logging_level="ERROR")
print(ray.get(ray.remote(lambda: os.nice(0)).remote()))"""
    shown = head.run(sys.executable, "-c", code)
    assert shown.stdout == f"{os.nice(0)}\n", shown.stderr


@pytest.mark.slow
def test_other_versions_are_named_on_both_sides(head: Head) -> None:
    """A cluster of another version: Ray refuses a driver, and takes jobs."""
    joined, asked = (
        head.script(f"""
            import sys, ray
            ray.__version__, sys.argv = "2.1.0", ["pate", "doctor", "--address", "{address}"]
            from pate.cli import main
            main()
            """)
        for address in (head.gcs, head.jobs)
    )
    python = platform.python_version()
    both = f"this machine has Ray 2.1.0 and Python {python}, the cluster Ray {ray.__version__} and Python {python}"
    assert joined.returncode == 2
    assert f"--address {head.gcs}: cannot join that Ray cluster: {both}; install the cluster's" in joined.stderr
    assert len(joined.stderr.splitlines()) == 1
    assert asked.returncode == 0
    assert asked.stderr.startswith(f"note: this machine has Ray 2.1.0, the cluster Ray {ray.__version__}\n")


@pytest.mark.slow
def test_plain_ray_job_submit_joins_the_cluster(head: Head) -> None:
    command = ["ray", "job", "submit", "--address", head.jobs, "--submission-id", "plain", "--working-dir", "."]
    wait = ["--set", "ray.workers=3"]  # this cluster does not grow: two will do
    shown = head.run(*command, "--", "pate", "run", "configs/digits.yaml", *SMALL, *wait)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "succeeded" in shown.stdout
    assert f"run directory: {head.folder}/home/pate-runs/digits-" in shown.stdout


@pytest.mark.slow
def test_a_failing_job_ends_with_its_status_and_one_line(head: Head) -> None:
    shown = head.pate("submit", DIGITS, *SMALL, "--set", "budget.max_queries=401", "--pack")
    assert shown.returncode == 2
    reason, last = shown.stderr.splitlines()[-2:]
    assert reason.startswith("pate: error: budget.max_queries = 401: there are only 400 public examples")
    assert re.fullmatch(r"pate: error: raysubmit_\w+ failed: status 2", last)
    assert shown.stdout == ""


@pytest.mark.slow
def test_ctrl_c_detaches_and_ray_job_stop_ends_the_job(head: Head) -> None:
    command = [sys.executable, "-m", "pate.cli", "submit", DIGITS, *SMALL, "--address", head.jobs]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=head.environment,
        cwd=head.folder,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell ignores it
    ) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline(), process.stderr.readline()]  # the job's id, and its first words
        process.send_signal(signal.SIGINT)
        lines += process.stderr.readlines()
    assert process.returncode == 130
    found = re.search(r"end it: (ray job stop raysubmit_\w+ --address http://127\.0\.0\.1:\d+)", "".join(lines))
    assert found, lines
    stopped = head.run(*found[1].split())
    assert "was stopped" in stopped.stdout, stopped.stdout + stopped.stderr


@pytest.mark.parametrize("kind", [pytest.param("no", marks=pytest.mark.slow), "wrong"])
def test_a_client_without_the_token_is_refused(head: Head, kind: str) -> None:
    wrong = head.folder / "wrong"
    wrong.touch(mode=0o600)
    wrong.write_text("0123456789abcdef" * 4)
    token = {"RAY_AUTH_MODE": "disabled"} if kind == "no" else {"RAY_AUTH_TOKEN_PATH": str(wrong)}
    shown = head.pate("doctor", **token)
    assert shown.returncode == 2
    assert f"refused, {'no token' if kind == 'no' else 'the wrong token'} was sent" in shown.stderr
    assert len(shown.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_driver_joins_from_outside_and_leaves_the_cluster_running(head: Head) -> None:
    out = head.folder / "joined"
    command = [sys.executable, "-m", "pate.cli", "run", *SMALL, "--address", head.gcs, "--out", str(out)]
    shown = head.run(*command)
    assert shown.returncode == 0, shown.stderr
    assert (out / "labels.npz").exists()
    for address in (head.jobs, head.gcs):
        host, port = address.removeprefix("http://").split(":")
        socket.create_connection((host, int(port)), timeout=30).close()


@pytest.mark.slow
def test_doctor_by_a_job_finds_nothing_wrong(head: Head) -> None:
    well = head.pate("doctor")
    assert well.returncode == 0, well.stdout + well.stderr
    assert "ok    token: wanted on every node; a request without one was refused" in well.stdout


def test_doctor_finds_an_open_token_file(head: Head) -> None:
    """By joining, as a driver does that comes from outside; the cluster is still there afterwards."""
    token = head.folder / "ray" / "auth_token"
    token.chmod(0o644)
    try:
        ill = head.run(sys.executable, "-m", "pate.cli", "doctor", "--address", head.gcs, "--json")
    finally:
        token.chmod(0o600)
    assert ill.returncode == 2
    socket.create_connection(("127.0.0.2", int(head.gcs.split(":")[1])), timeout=30).close()
    findings = json.loads(ill.stdout)["findings"]
    well = {finding["what"] for finding in findings if finding["level"] == "ok"}
    assert {"nodes", "token", "session directory", "dashboard", "teachers on CPU nodes"} <= well
    assert [f["what"] for f in findings if f["level"] == "fail"] == ["token file"] * 2
    assert all(f"chmod 600 {token}" in f["text"] for f in findings if f["level"] == "fail")


@pytest.mark.slow
def test_baseline_reproduce_and_audit_are_sent_too(head: Head) -> None:
    """A baseline into storage, whence it is downloaded; an audit of it; a study, which stays on the head."""
    config, store = head.folder / "base.yaml", f"file://{head.folder}/store/base"
    config.write_text("name: base\ndata: {source: digits}\nbaseline: {name: dp_erm}\nbudget: {epsilon: 2}\n")
    base, audited = head.folder / "base", head.folder / "audited"
    shown = head.pate("submit", "baseline", str(config), "--out", store, "--download-to", str(base))
    assert shown.returncode == 0, shown.stderr
    assert "ε to publish" in shown.stdout
    assert {path.name for path in base.iterdir()} == {"report.json", "report.html", "privacy.txt", "plots", "model"}
    attack = ["audit", store, "--attacks", "threshold", "--quick"]
    shown = head.pate("submit", *attack, "--download-to", str(audited))
    assert shown.returncode == 0, shown.stderr
    assert {"audit.json", "audit.html", "model"} <= {path.name for path in audited.iterdir()}
    shown = head.pate("submit", "reproduce", "digits", "--quick")
    assert shown.returncode == 0, shown.stderr
    assert "neighbours-1" in shown.stderr
    assert "private: do not publish" not in shown.stdout + shown.stderr
    assert "for name in results.json table.txt; do" in shown.stdout


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to hide a folder from the cluster")
def test_a_run_that_a_cluster_behind_ray_client_cannot_see_is_one_line(head: Head) -> None:
    listed = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    port = re.search(rf"--port={head.gcs.split(':')[1]} .*--ray-client-server-port=(\d+)", listed)
    assert port
    deadline = time.monotonic() + 60
    while socket.socket().connect_ex(("127.0.0.2", int(port[1]))) and time.monotonic() < deadline:
        time.sleep(0.2)  # it starts after the head is up
    (head.folder / "hidden").mkdir()
    code = f"""
        import subprocess
        from pathlib import Path
        from pate.cluster._session import check_visible
        from pate.cluster._session import ray_session
        from pate.config import RaySettings
        from pate.errors import RunError

        with ray_session("ray://127.0.0.2:{port[1]}", RaySettings()):
            Path("{head.folder}/seen").mkdir()
            check_visible(Path("{head.folder}/seen"))
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "{head.folder}/hidden"], check=True)
            Path("{head.folder}/hidden/private").mkdir()
            try:
                check_visible(Path("{head.folder}/hidden/private"))
            except RunError as error:
                print(error)
        """
    shown = head.script(code, "unshare", "--mount")
    assert f"{head.folder}/hidden: the cluster does not see this run directory" in shown.stdout, shown.stderr
