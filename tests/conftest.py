"""Shared fixtures: one small Ray for the session, real data where it is at hand."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support import REPOSITORY

# Whoever starts the tests may ignore signals, as a shell does for what is in the background and as nohup does; tests
# send them, and what they start inherits what is ignored.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)
collect_ignore = ["support/releases.py"]  # a program that counts what it takes of `os.urandom`
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ["XDG_STATE_HOME"] = str(Path(tempfile.gettempdir()) / f"pate-tests-{os.getuid()}")  # not the user's own key
os.environ.setdefault("OMP_NUM_THREADS", "1")  # small nets and small matrices are faster so
_PATE_DATA = os.environ.pop("PATE_DATA", None) or os.environ.get("PATE_TEST_DATA")
if _PATE_DATA:  # for the fixtures here, in every process of the tests; what is tested must not depend on it
    os.environ["PATE_TEST_DATA"] = _PATE_DATA

# Files that share something costly, or ports, and run in one process; the slowest first, so that all end together.
_TOGETHER = {
    "a Ray": "test_pool test_vote_counting test_chaos test_own_teachers test_reproduce test_shards"
    " test_readers test_nothing_leaks test_metrics",
    "the embedded run": "test_cli test_cli_ledger",
    "the cluster's own ports": "test_jobs test_remote_task_on_nodes test_many_nodes test_elastic"
    " test_launcher test_hosts_cut_off",
    "the small run": "test_runner test_figures test_report_files test_report_in_browser test_published_config"
    " test_tracking",
    "real data": "test_images test_stored test_benchmark_tables test_run",
}
_LONG = ["test_run_in_storage", "test_signals", "test_ray_session", "test_student_card", "test_mutants", "test_threads"]
_GROUPS = {stem: group for group, stems in _TOGETHER.items() for stem in stems.split()}
_ORDER = {name: place for place, name in enumerate([*_TOGETHER, *_LONG])}


def _group(nodeid: str) -> str:
    file = nodeid.split("::", maxsplit=1)[0]
    return _GROUPS.get(Path(file).stem, file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        group = _group(item.nodeid)
        return _ORDER.get(group, _ORDER.get(Path(group).stem, len(_ORDER)))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Processes share the tests, by whole files or groups of them, in the order of collection.

    `--dist loadgroup` would do, but xdist 3.8 marks groups in a way that pytest 9.2 no longer sees.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    return Together(config, log)


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """A Ray of two CPUs that all ordinary tests share."""
    from pate.cluster._session import ray_session
    from pate.config import RaySettings

    with ray_session(None, RaySettings(workers=2)):
        yield


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The embedded run through the command line, as it stands, and what it printed; do not change its directory."""
    out = tmp_path_factory.mktemp("runs") / "digits"
    command = [sys.executable, "-m", "pate.cli", "run", "--out", str(out), "--json", "--evaluate-teachers"]
    return out, subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=REPOSITORY)


def _words(path: Path) -> str:
    """A file's text; of pages and drawings without images, styles and coordinates, whose digits mean nothing."""
    text = path.read_text(encoding="utf-8")
    if path.suffix not in (".html", ".svg"):
        return text
    text = re.sub(r"<style.*?</style>|base64,[^\"]*", "", text, flags=re.DOTALL)
    named = " ".join(
        re.findall(r'(?:alt|title|class|style)="([^"]*)"', re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL))
    )
    return re.sub(r"<!--.*?-->|<[^>]*>", " ", text, flags=re.DOTALL) + named


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a small run that tests of the report share; do not change it."""
    from support.small_run import make_run

    out = tmp_path_factory.mktemp("report") / "digits"
    make_run(out)
    return out


@pytest.fixture(scope="session")
def published() -> Callable[[Path], dict[str, str]]:
    """What people can read in the files of a run that may leave it, by name."""

    def texts(run: Path) -> dict[str, str]:
        patterns = ("report.html", "report.json", "privacy.txt", "plots/*.svg", "student/*.json")
        return {str(path.relative_to(run)): _words(path) for pattern in patterns for path in run.glob(pattern)}

    return texts


def _real_data() -> Path | None:
    folder = Path(_PATE_DATA) if _PATE_DATA else REPOSITORY.parent / "shared" / "data"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the real benchmarks but SVHN; skips where there is none."""
    return _unpacked(tmp_path_factory, "mnist", "adult", "kddcup99", "votes")


@pytest.fixture(scope="session")
def real_svhn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with SVHN; skips where there is none."""
    return _unpacked(tmp_path_factory, "svhn")


def _unpacked(temporary: pytest.TempPathFactory, *names: str) -> Path:
    folder = _real_data()
    if folder is None:
        pytest.skip("no real data: set PATE_DATA to a folder that holds it")
    if not (folder / "unpack").exists():
        return folder
    root = temporary.mktemp("data")
    subprocess.run([sys.executable, str(folder / "unpack"), str(root), *names], check=True, timeout=300)
    return root


@pytest.fixture(scope="session")
def votes() -> Path:
    """The folder with the papers' own vote histograms; skips where there is none."""
    folder = _real_data()
    if folder is None or not (folder / "votes").is_dir():
        pytest.skip("no vote histograms: set PATE_DATA to a folder that holds votes/*.npy")
    return folder / "votes"


@pytest.fixture(scope="session")
def authors_votes(votes: Path) -> Callable[[str], NDArray[np.int64]]:
    """The papers' votes by data set, `mnist` or `svhn`: a row for each public example."""
    return lambda name: np.load(votes / f"{name}_250_teachers.npy", allow_pickle=False).astype(np.int64)
