"""A baseline that is killed anywhere between the end of its training and its report, and resumed: one release only."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from pate.runs._files import RunFiles
from pate.runs._run_ledger import forget_anchor
from pate.runs.run import Run

_SERVER = """
import json, os, signal, sys
from pathlib import Path

import pate.baselines._run as baseline
import pate.report._plots
from pate.config import load_baseline_config
from pate.runs._console import Console

CHANGES = {"open", "os.rename", "os.mkdir", "os.link", "os.chmod", "os.truncate"}
folder = Path(sys.argv[1])
fit = baseline._fit
sys.path.insert(0, str(folder))

def work(run, at):
    changes, trained = 0, False

    def fit_and_arm(*given):
        nonlocal trained
        fit(*given)
        trained = True

    def count(event, given):
        nonlocal changes
        if not (trained and event in CHANGES and os.fspath(given[0]).startswith(run)):
            return
        if event == "open" and not given[2] & (os.O_WRONLY | os.O_RDWR):
            return
        changes += 1
        if changes == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def count_paths(event, given):
        if given and isinstance(given[0], (str, bytes, os.PathLike)):
            count(event, given)

    baseline._fit = fit_and_arm
    if at >= 0:
        sys.addaudithook(count_paths)
    config = load_baseline_config(folder / "config.yaml")
    baseline.run_baseline(config, run, data_dir=folder, config_dir=folder, resume="auto", console=Console())
    return changes

work(str(folder / "warm"), -1)  # everything is loaded, by one thread: a child can be forked
for line in sys.stdin:
    run, at = json.loads(line)
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        os.write(writes, b"%d" % work(run, at))
        os._exit(0)
    os.close(writes)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([status, int(os.read(reads, 20) or 0)]), flush=True)
    os.close(reads)
"""

_OWN = '''
import numpy as np
from pate.baselines.dp_erm import DPLinearClassifier

class Own(DPLinearClassifier):
    """A learner that a config names by its dotted path."""

    def __init__(self, epsilon=1.0, *, n_records, classes=(0, 1), random_state=0):
        super().__init__(epsilon, n_records=n_records, classes=classes, random_state=random_state)
'''

BASELINES: dict[str, dict[str, Any]] = {
    "dp_erm": {},
    "dp_erm_tuned": {"candidates": [{"regularisation": 0.1}, {"regularisation": 0.01}]},
    "dp_sgd": {"model": "linear", "lot_size": 10, "epochs": 1, "accountant": "rdp"},
    "somebodys_learner.Own": {},
}


class Work(NamedTuple):
    """How a run ended, and how often it changed files after its training."""

    status: int
    changes: int


Start = Callable[[Path, int], Work]


QUICK = "dp_erm"  # what is stored, charged and published is the same work for all of them


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[] if name == QUICK else pytest.mark.slow) for name in BASELINES],
)
def start(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Runs a baseline in a process of its own, which is killed at a change of its files that is numbered (0: never)."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 40)
    X = (rng.normal(size=(40, 3)) + y[:, None]).astype(np.float32)
    np.savez(folder / "data.npz", X_private=X, y_private=y, X_public=X[:5])
    (folder / "somebodys_learner.py").write_text(_OWN)
    budget = {"epsilon": 3} | ({"delta": 1e-5} if request.param == "dp_sgd" else {})
    config = {
        "name": "killed",
        "data": {"source": "npz", "file": "data.npz", "classes": ["0", "1"]},
        "records": 40,
        "baseline": {"name": request.param, "params": BASELINES[request.param]},
        "budget": budget,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    alone = os.environ | {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
    command = [sys.executable, "-c", _SERVER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=alone) as server:

        def ask(run: Path, at: int) -> Work:
            assert server.stdin is not None
            assert server.stdout is not None
            print(json.dumps([str(run), at]), file=server.stdin, flush=True)
            return Work(*json.loads(server.stdout.readline()))

        yield ask
        server.kill()


def released(path: Path) -> dict[str, bytes] | None:
    return {name: array.tobytes() for name, array in load_file(path).items()} if path.exists() else None


def charged(run: RunFiles) -> list[bytes]:
    """What the ledger was charged for."""
    if not run.ledger_file.exists():
        return []
    with closing(sqlite3.connect(run.ledger_file)) as ledger:
        if not ledger.execute("SELECT 1 FROM sqlite_master WHERE name = 'answers'").fetchone():
            return []
        return [query for (query,) in ledger.execute("SELECT query FROM answers")]


def test_another_release_than_the_one_charged_is_refused(start: Start, tmp_path: Path) -> None:
    """And two trainings differ, so that the test below can notice a second one."""
    for name in ("a", "b"):
        assert start(tmp_path / name, 0).status == 0
    run, other = RunFiles(tmp_path / "a"), RunFiles(tmp_path / "b")
    assert released(run.released_file) != released(other.released_file)
    before = released(run.model_folder / "model.safetensors")
    run.report_file.unlink()
    shutil.copyfile(other.released_file, run.released_file)
    assert start(run.path, 0).status != 0
    assert released(run.model_folder / "model.safetensors") == before


def test_a_published_model_pins_the_ledger(start: Start, tmp_path: Path) -> None:
    """Without ledger and anchor nothing else would tell that the run has released a model."""
    assert start(tmp_path / "run", 0).status == 0
    run = RunFiles(tmp_path / "run")
    before = released(run.model_folder / "model.safetensors")
    forget_anchor(Run(run.path))
    gone = (run.report_file, run.ledger_file, run.ledger_head, run.released_file, run.baseline_state, run.anchor_file)
    for path in gone:
        path.unlink(missing_ok=True)
    assert start(run.path, 0).status != 0
    assert released(run.model_folder / "model.safetensors") == before


def test_what_is_released_is_stored_first_and_never_drawn_again(start: Start, tmp_path: Path) -> None:
    """Before it is stored nothing can be seen; from then on a resumed run publishes it, at the cost stored with it."""
    ended, total = start(tmp_path / "whole", 0)
    assert ended == 0
    assert total > 12
    stored_at: list[bool] = []
    for at in range(1, total + 1):
        run = RunFiles(tmp_path / f"at{at}")
        assert start(run.path, at).status == -9
        stored, seen = released(run.released_file), released(run.model_folder / "model.safetensors")
        stored_at.append(stored is not None)
        if stored is None:
            assert not run.model_folder.exists()
        else:
            assert seen in (None, stored)
            assert charged(run) in ([], [sha256(run.released_file.read_bytes()).digest()])
            assert charged(run) or not run.model_folder.exists()
        assert start(run.path, 0).status == 0
        published = released(run.model_folder / "model.safetensors")
        assert published == released(run.released_file)
        assert stored in (None, published)
        assert charged(run) == [sha256(run.released_file.read_bytes()).digest()]
        card, report = (
            json.loads((run.model_folder / "model.json").read_text()),
            json.loads(run.report_file.read_text()),
        )
        assert (card["epsilon"], card["delta"]) == (report["privacy"]["epsilon"], report["privacy"]["delta"])
        assert report["privacy"]["epsilon"] <= 3
        assert run.page.exists()
        assert run.statement.exists()
        shutil.rmtree(run.path)
    assert stored_at == sorted(stored_at)  # once it is there it stays
    assert set(stored_at) == {False, True}
