"""Jobs on a real cluster of two nodes with a token: the one that `cluster/one_machine.sh` starts."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import REPOSITORY
from support.command_line import Ended

from pate.report.schema import Report

SMALL = ["--set", "n_teachers=10", "--set", "budget.asked=40", "--set", "mechanism.sigma=5", "--set", "nonprivate=null"]
SMALL += ["--set", "ray.workers=1"]
SMALL += ["--set", "teachers=[{name: sklearn.naive_bayes.GaussianNB}]"]
SMALL += ["--set", "student={name: supervised, params: {estimator: sklearn.svm.SVC}}"]
DIGITS = str(REPOSITORY / "configs" / "digits.yaml")


_SEVERAL = """import json, sys
from support.command_line import in_process
print(json.dumps([in_process(*arguments) for arguments in json.loads(sys.argv[1])]))
"""


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
            timeout=240,
            cwd=REPOSITORY,
            env=self.environment | environment,
        )

    def pate(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "pate.cli", *arguments, "--address", self.jobs, **environment)

    def several(self, *commands: list[str]) -> list[Ended]:
        """`pate …` several times in one process, which loads Ray once."""
        path = f"{REPOSITORY / 'tests'}:{REPOSITORY}:{self.environment.get('PYTHONPATH', '')}"
        lines = json.dumps([[*command, "--address", self.jobs] for command in commands])
        shown = self.run(sys.executable, "-c", _SEVERAL, lines, PYTHONPATH=path)
        assert shown.returncode == 0, shown.stderr
        return [Ended(*ended) for ended in json.loads(shown.stdout)]


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
        process.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def test_submit_runs_follows_and_fetches(head: Head) -> None:
    to = head.folder / "fetched"
    shown = head.pate("submit", DIGITS, *SMALL, "--out", "~/runs/one", "--to", str(to), "--json")
    assert shown.returncode == 0, shown.stderr
    assert "ε to publish" in shown.stderr  # the job's own words
    content = json.loads(shown.stdout)
    assert Report.model_validate_json((to / "report.json").read_text()).queries.asked == 40
    assert content["run"] == str(to)
    public = {"report.json", "report.html", "privacy.txt", "plots", "labels.npz", "student"}
    assert {path.name for path in to.iterdir()} == public
    assert (head.folder / "home" / "runs" / "one" / "private").is_dir()  # stays there
    listed, logged = head.several(["jobs"], ["logs", content["job"]])
    assert re.search(rf"{content['job']}  SUCCEEDED .* ~/runs/one", listed.stdout)
    assert len(listed.stdout.splitlines()) == 1  # errands are not shown
    assert "ε to publish" in logged.stdout


def test_plain_ray_job_submit_joins_the_cluster_and_its_run_can_be_fetched(head: Head) -> None:
    command = ["ray", "job", "submit", "--address", head.jobs, "--submission-id", "plain", "--working-dir", "."]
    wait = ["--set", "ray.workers=3", "--set", "ray.wait_for_workers=1"]  # this cluster does not grow: two will do
    shown = head.run(*command, "--", "pate", "run", "configs/digits.yaml", *SMALL, *wait)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "succeeded" in shown.stdout
    assert f"run directory: {head.folder}/home/pate-runs/digits-" in shown.stdout
    fetched = head.pate("fetch", "plain", "--to", str(head.folder / "plain"))
    assert fetched.returncode == 0, fetched.stderr
    assert "40 asked" in fetched.stdout
    assert json.loads((head.folder / "plain" / "report.json").read_text())["name"] == "digits"


def test_a_failing_job_ends_with_its_status_and_one_line(head: Head) -> None:
    shown = head.pate("submit", DIGITS, *SMALL, "--set", "budget.asked=401", "--pack")
    assert shown.returncode == 2
    last = shown.stderr.splitlines()[-1]
    assert last.startswith("pate: error: raysubmit_")
    assert "failed: budget.asked = 401: there are only 400 public examples" in last
    assert shown.stdout == ""


def test_ctrl_c_detaches_and_stop_ends_the_job(head: Head) -> None:
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
    found = re.search(r"Attach again: pate logs (raysubmit_\w+) --follow --address http", "".join(lines))
    assert found, lines
    stopped, again = head.several(["stop", found[1]], ["logs", found[1], "--follow"])
    assert stopped.returncode == 0, stopped.stderr
    assert f"{found[1]}: stopped" in stopped.stderr
    assert "--resume" in stopped.stderr
    assert again.returncode == 1
    assert "stopped" in again.stderr.splitlines()[-1]


@pytest.mark.parametrize("kind", ["no", "wrong"])
def test_a_client_without_the_token_is_refused(head: Head, kind: str) -> None:
    wrong = head.folder / "wrong"
    wrong.touch(mode=0o600)
    wrong.write_text("0123456789abcdef" * 4)
    token = {"RAY_AUTH_MODE": "disabled"} if kind == "no" else {"RAY_AUTH_TOKEN_PATH": str(wrong)}
    shown = head.pate("jobs", **token)
    assert shown.returncode == 2
    assert f"refused, {'no token' if kind == 'no' else 'the wrong token'} was sent" in shown.stderr
    assert len(shown.stderr.splitlines()) == 1


def test_a_driver_joins_from_outside_and_leaves_the_cluster_running(head: Head) -> None:
    out = head.folder / "joined"
    command = [sys.executable, "-m", "pate.cli", "run", *SMALL, "--address", head.gcs, "--out", str(out)]
    shown = head.run(*command)
    assert shown.returncode == 0, shown.stderr
    assert (out / "labels.npz").exists()
    for address in (head.jobs, head.gcs):
        host, port = address.removeprefix("http://").split(":")
        socket.create_connection((host, int(port)), timeout=30).close()


def test_doctor_finds_an_open_token_file(head: Head) -> None:
    well = head.pate("doctor")
    assert well.returncode == 0, well.stdout + well.stderr
    assert "ok    token: wanted on every node; a request without one was refused" in well.stdout
    assert "ok    session directory: closed to others" in well.stdout
    token = head.folder / "ray" / "auth_token"
    token.chmod(0o644)
    try:
        ill = head.run(sys.executable, "-m", "pate.cli", "doctor", "--address", head.gcs, "--json")
    finally:
        token.chmod(0o600)
    assert ill.returncode == 2
    findings = json.loads(ill.stdout)["findings"]
    assert [f["what"] for f in findings if f["level"] == "fail"] == ["token file"] * 2
    assert all(f"chmod 600 {token}" in f["text"] for f in findings if f["level"] == "fail")


def test_mistakes_are_one_line(head: Head) -> None:
    mistakes = {
        "nosuch: there is no such job": ["logs", "nosuch"],
        "nowhere.yaml: no such config file": ["submit", "nowhere.yaml"],
        "--resume: name the run directory": ["submit", DIGITS, "--resume"],
    }
    for words, shown in zip(mistakes, head.several(*mistakes.values()), strict=True):
        assert shown.returncode == 2
        assert words in shown.stderr
        assert len(shown.stderr.splitlines()) == 1
