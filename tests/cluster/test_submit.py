"""What `pate submit` sends, what it downloads, and what it tells to copy; with a real head: test_jobs.py."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.command_line import in_process

from pate.cli import _cluster as jobs
from pate.cli._cluster import _lay_out, _sends_token_unencrypted, download
from pate.config import default_config_path
from pate.errors import RunError
from pate.runs._files import MAY_LEAVE, OF_A_STUDY, RunFiles

DIGITS = str(default_config_path())


class FakeJobs:
    """A cluster on which a job prints what the test says."""

    address = "http://127.0.0.1:8265"
    started: tuple[str, Path | None, bool]
    lines: tuple[str, ...] = ()
    ended = SimpleNamespace(status="SUCCEEDED", driver_exit_code=0, message="")

    def __init__(self, *_: object) -> None:
        pass

    def start(self, entrypoint: str, config: Path | None = None, pack: bool = False) -> str:
        type(self).started = entrypoint, config, pack
        return "raysubmit_1"

    def follow(self, _: str, show: Callable[[str], None]) -> Any:
        for line in self.lines:
            show(line)
        return self.ended


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeJobs]:
    monkeypatch.chdir(tmp_path)
    fake = type("Fake", (FakeJobs,), {})
    monkeypatch.setattr(jobs, "Jobs", fake)
    return fake


def a_run(folder: Path) -> Path:
    for name in ("private/key", "private/votes.npz", "ledger.db", "config.yaml", "student/student.json", "labels.npz"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "report.json").write_text("{}")
    return folder


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_only_known_files_of_a_run_are_downloaded(tmp_path: Path) -> None:
    """Not what is private, nor what somebody or a crash left beside them, nor what a link leads to."""
    run = a_run(tmp_path / "run")
    known = ("report.html", "privacy.txt", "plots/classes.svg", "plots/examples.npz", "student/model.skops")
    strange = ("student/records.csv", "student/student.json.partial", "plots/notes.txt", "plots/a/b.svg")
    for name in (*known, *strange, "results.json", "report.json.bak"):
        (run / name).parent.mkdir(exist_ok=True, parents=True)
        (run / name).write_text(name)
    names = download(f"file://{run}", tmp_path / "here")
    assert names == ["report.json", "report.html", "privacy.txt", "plots", "labels.npz", "student"]
    assert files_in(tmp_path / "here") == {*known, "report.json", "labels.npz", "student/student.json"}
    (run / "plots" / "link.svg").symlink_to(run / "private" / "key")
    assert set(RunFiles(run).may_leave()) == files_in(tmp_path / "here")


def test_a_download_is_whole_or_not_there(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    download(f"file://{run}", tmp_path / "here")
    with pytest.raises(RunError, match="is not empty; choose another place"):
        download(f"file://{run}", tmp_path / "here")
    (run / "report.json").unlink()
    with pytest.raises(RunError, match="no finished run is seen there"):
        download(f"file://{run}", tmp_path / "there")
    assert not list(tmp_path.glob("there*"))


def test_only_config_and_code_are_sent(tmp_path: Path) -> None:
    project, sent = tmp_path / "project", tmp_path / "sent"
    a_run(project / "runs" / "one")
    for name in ("my.yaml", "teacher.py", "patients.csv", "data.npz"):
        (project / name).write_text(name)
    sent.mkdir()
    _lay_out(sent, project / "my.yaml", pack=True)
    assert {path.name for path in sent.iterdir()} == {"my.yaml", "teacher.py", "pate"}
    assert (sent / "pate" / "cli" / "__init__.py").exists()


@pytest.mark.parametrize(
    ("words", "entrypoint"),
    [
        (
            f"{DIGITS} --set seed=1 --out '~/one two' --resume",
            "run digits.yaml --set seed=1 --out '~/one two' --resume",
        ),
        (f"run {DIGITS} --resume=auto --out /a --force", "run digits.yaml --resume=auto --out /a --force"),
        (
            "reproduce mnist --quick --seeds 2",
            "reproduce mnist --quick --seeds 2 --out '~/pate-runs/reproduce-mnist-quick'",
        ),
        ("audit '~/one' --attacks threshold", "audit '~/one' --attacks threshold --address auto"),
    ],
)
def test_options_of_a_command_are_passed_on(cluster: type[FakeJobs], words: str, entrypoint: str) -> None:
    ended = in_process("submit", *shlex.split(words), "--detach", "--pack")
    assert (ended.returncode, ended.stdout) == (0, "raysubmit_1\n"), ended.stderr
    assert cluster.started[0] == f"python -m pate.cli {entrypoint}"
    assert cluster.started[2]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (f"{DIGITS} --sed a=b", "no such option: --sed; did you mean --set?"),
        ("nowhere.yaml", "nowhere.yaml: no such config file"),
        (f"{DIGITS} --set budget.delta=7", "budget.delta"),
        (f"{DIGITS} --resume", "--resume: name the run directory"),
        (f"{DIGITS} --out ~/one --download-to here", "--download-to: what is downloaded comes from storage"),
        ("audit", "Missing argument 'run'"),
        (f"{DIGITS} --address 127.0.0.1:6379", "is no jobs address"),
        (f"{DIGITS} --address http://127.0.0.1:9", "no Ray head answers there"),
    ],
)
def test_mistakes_are_found_before_anything_is_sent(words: str, told: str) -> None:
    ended = in_process("submit", *words.split())
    assert ended.returncode == 2
    assert told in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_what_is_on_the_head_is_copied_file_by_file(cluster: type[FakeJobs]) -> None:
    cluster.lines = ("ε to publish: 1\x1b[2J", "run directory: /home/u/pate runs/one  (publishable: labels.npz …)")
    ended = in_process("submit", DIGITS, "--out", "~/pate runs/one")
    assert ended.returncode == 0, ended.stderr
    assert "ε to publish: 1\\x1b[2J" in ended.stderr
    launcher, kubernetes = (line for line in ended.stdout.splitlines() if line.startswith("  "))
    assert "ray rsync-down CLUSTER.yaml '/home/u/pate runs/one'/$name runs/one/" in launcher
    assert "kubectl cp -n pate -c ray-head $pod:'/home/u/pate runs/one'/$name" in kubernetes
    for line in (launcher, kubernetes):
        assert "for name in report.json report.html privacy.txt plots labels.npz student; do" in line
        assert "private" not in line
    assert {name for names in sys.modules["pate.cli._cluster"]._PUBLISHABLE.values() for name in names} <= {
        *MAY_LEAVE,
        *OF_A_STUDY,
    }
    told = json.loads(in_process("submit", DIGITS, "--out", "~/one", "--json").stdout)
    assert told == {"job": "raysubmit_1", "run": "/home/u/pate runs/one"}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (DIGITS, "report.json report.html privacy.txt plots labels.npz student"),
        ("baseline base.yaml", "report.json report.html privacy.txt plots model"),
        ("audit runs/one", "audit.json audit.html"),
        ("reproduce digits", "results.json table.txt"),
    ],
)
def test_of_each_command_what_it_publishes_is_copied(cluster: type[FakeJobs], words: str, names: str) -> None:
    Path("base.yaml").write_text("name: base\ndata: {source: digits}\nbaseline: {name: dp_erm}\nbudget: {epsilon: 2}\n")
    ended = in_process("submit", *words.split())
    copying = [line for line in ended.stdout.splitlines() if "for name in" in line]
    assert len(copying) == 2, ended.stderr
    assert all(f"for name in {names}; do" in line for line in copying)


def test_doctor_by_a_job_tells_of_this_machine_too(
    cluster: type[FakeJobs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its token file, which need not be the nodes', and its versions; and it sends its own pate if that is wanted."""
    token = tmp_path / "token"
    token.touch(0o600)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    found = {"findings": [{"level": "warn", "what": "disk", "text": "9 % free"}], "versions": {"a": {"ray": "1.0"}}}
    cluster.lines = ("a line of Ray's", json.dumps(found))
    shown = in_process("doctor", "--address", "http://127.0.0.1:8265", "--json", "--pack")
    assert shown.returncode == 0, shown.stderr
    told = {finding["what"]: finding["level"] for finding in json.loads(shown.stdout)["findings"]}
    assert told == {"disk": "warn", "your ray": "warn"}
    assert cluster.started == ("python -m pate.cli doctor --json", None, True)
    token.chmod(0o644)
    shown = in_process("doctor", "--address", "http://127.0.0.1:8265")
    assert shown.returncode == 2
    assert f"FAIL  your token file: others can read it; run: chmod 600 {token}" in shown.stdout
    assert not cluster.started[2]


@pytest.mark.parametrize(("config", "pack"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_job_goes_to_the_address_that_is_named_with_what_it_needs(
    config: bool, pack: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself would prefer its variables, and send the job, the code and the token elsewhere."""
    sent: dict[str, Any] = {}

    class Client:
        def __init__(self, address: str) -> None:
            sent["address"] = [address, *(os.environ.get(f"RAY_{name}") for name in ("ADDRESS", "API_SERVER_ADDRESS"))]

        _do_request = dict

        def submit_job(self, entrypoint: str, runtime_env: dict[str, Any]) -> str:
            folder = runtime_env.get("working_dir")
            sent["files"] = set() if folder is None else {path.name for path in Path(folder).iterdir()}
            return "job"

    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", Client)
    monkeypatch.setenv("RAY_ADDRESS", "http://elsewhere:8265")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://elsewhere:8265")
    (tmp_path / "my.yaml").touch()
    to = jobs.Jobs("http://127.0.0.1:1/", lambda _: None)
    assert to.start("pate doctor", tmp_path / "my.yaml" if config else None, pack) == "job"
    assert sent["address"] == ["http://127.0.0.1:1", None, None]
    assert sent["files"] == {*(["my.yaml"] if config else []), *(["pate"] if pack else [])}


def test_a_failed_job_ends_with_its_status_and_quotes_no_log(cluster: type[FakeJobs]) -> None:
    """Ray's message about a job that had begun holds the end of its log."""
    cluster.ended = SimpleNamespace(status="FAILED", driver_exit_code=3, message="last lines: secret")
    ended = in_process("submit", DIGITS)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.splitlines()[-1] == "pate: error: raysubmit_1 failed: status 3"
    cluster.ended = SimpleNamespace(status="FAILED", driver_exit_code=None, message="no space\nleft")
    ended = in_process("submit", DIGITS)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, "pate: error: raysubmit_1 failed: no space left")


@pytest.mark.parametrize(
    ("address", "clear"),
    [("http://127.0.0.1:8265", False), ("http://head:8265", True), ("https://head", False), ("http://[::1]:1", False)],
)
def test_a_token_in_the_clear_is_noticed(address: str, clear: bool) -> None:
    assert _sends_token_unencrypted(address) == clear
