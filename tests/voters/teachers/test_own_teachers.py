"""Seven kinds of teachers, one of them from a file next to the config; then a record is forgotten."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.command_line import in_process
from support.small_data import own_data

from pate.config import load_config
from pate.data._sources import load
from pate.data.private import records_of
from pate.errors import DataError, RunError
from pate.followup import drop_forgotten, forget
from pate.runs.run import Run, Version
from pate.teachers import assign_recipes, recipes
from pate.voters.teachers._checkpoints import TeacherFiles
from pate.voters.teachers.ensemble import parts_of

CENTROID = '''"""A teacher of one's own: only fit and predict, no probabilities, no parameters."""

import numpy as np


class Nearest:
    def fit(self, X, y):
        self.labels = np.unique(y)
        self.centres = np.array([X[y == label].mean(axis=0) for label in self.labels])
        return self

    def predict(self, X):
        return self.labels[((X[:, None] - self.centres) ** 2).sum(axis=2).argmin(axis=1)]
'''
CONFIG = """# pate run own.yaml
name: own
n_teachers: 14
data: {source: csv, private: private.csv, public: public.csv, test: test.csv, label: kind, id: who, classes: [cat, dog]}
teachers:
  - name: sklearn.naive_bayes.GaussianNB
  - name: sklearn.discriminant_analysis.LinearDiscriminantAnalysis
  - name: sklearn.neighbors.KNeighborsClassifier
    grid: {n_neighbors: [1, 3]}
  - name: sklearn.tree.DecisionTreeClassifier
  - name: sklearn.linear_model.SGDClassifier
  - name: sklearn.pipeline.Pipeline
    params:
      steps:
        - [scale, {name: sklearn.preprocessing.StandardScaler}]
        - [svc, {name: sklearn.svm.SVC, params: {C: 2}}]
  - name: centroid_teacher.Nearest
mechanism: {name: lnmax, scale: 3}
budget: {max_queries: 30}
student: {name: supervised, params: {estimator: sklearn.linear_model.LogisticRegression}}
ray: {workers: 1}
"""


CANARY = "0.8675309"
KEEPS_RAYS_LOGS = """import sys
import pate.cluster._session
pate.cluster._session._remove = lambda folder: print("kept", folder, file=sys.stderr)
from pate.cli import main
main()
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One record is a canary; Ray logs at debug level."""
    folder = tmp_path_factory.mktemp("own")
    own_data(folder, n_private=700)
    rows = (folder / "private.csv").read_text().splitlines()
    rows[5] = f"{CANARY},{CANARY},cat,canary-person"
    (folder / "private.csv").write_text("\n".join(rows) + "\n")
    (folder / "own.yaml").write_text(CONFIG)
    (folder / "centroid_teacher.py").write_text(CENTROID)
    arguments = ["run", str(folder / "own.yaml"), "--out", str(folder / "run"), "--json"]
    environment = os.environ | {"RAY_BACKEND_LOG_LEVEL": "debug"}
    command = [sys.executable, "-c", KEEPS_RAYS_LOGS, *arguments]
    return folder, subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)


def test_seven_families_run(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, shown = finished
    assert shown.returncode == 0, shown.stderr
    content = json.loads(shown.stdout)
    assert content["student"]["accuracy"] > 0.8
    assert content["benchmark"] is None
    assert content["privacy"]["unit"] == "id"
    assert content["classes"] == ["cat", "dog"]
    assert not (folder / "run" / "private" / "evaluation.json").exists()
    assert json.loads((folder / "run" / "private" / "failures.json").read_text())["teachers"] == {}
    kinds = recipes(load_config(folder / "own.yaml").teachers)
    assert len(kinds) == 8
    shares = Counter(kinds[kind].name for kind in assign_recipes(kinds, 14))
    assert set(shares.values()) == {2}
    assert len(shares) == 7
    assert len(list((folder / "run" / "private" / "teachers").glob("0*"))) == 14


def test_nothing_private_is_in_any_log_or_report(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """Neither the canary nor vote counts: nowhere outside private/, Ray's own logs included."""
    folder, shown = finished
    kept = next(line for line in shown.stderr.splitlines() if line.startswith("kept "))
    session = Path(kept.removeprefix("kept "))
    run = folder / "run"
    with np.load(run / "private" / "votes.npz") as votes:
        histograms = {" ".join(map(str, row)) for row in votes["counts"] if row.min() > 0}
    histograms |= {text.replace(" ", ", ") for text in histograms}
    secrets = [
        CANARY.encode(),
        b"canary-person",
        np.float32(CANARY).tobytes(),
        *(f"[{h}]".encode() for h in histograms),
    ]
    assert len(secrets) > 3
    files = [*run.rglob("*"), *session.rglob("*")]
    files = [path for path in files if path.is_file() and run / "private" not in path.parents]
    assert len([path for path in files if path.suffix in (".log", ".out", ".err")]) > 3
    texts = {str(path): path.read_bytes() for path in files} | {"printed": (shown.stdout + shown.stderr).encode()}
    shutil.rmtree(session)
    for place, content in texts.items():
        for secret in secrets:
            assert secret not in content, (place, secret)


@pytest.mark.usefixtures("local_ray")
def test_forgetting_retrains_one_teacher_and_leaves_answers_as_they_are(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = finished
    run = folder / "run"
    store = TeacherFiles(run / "private", (run / "private" / "key").read_bytes(), trusted=True)
    before = {part: store.load(part) for part in range(14)}
    labels = np.load(run / "labels.npz")["labels"]
    shown = in_process("forget", str(run), "--id", "p17")
    assert shown.returncode == 0, shown.stderr
    assert "cannot be taken back" in " ".join(shown.stdout.split())
    assert "version 2" in shown.stdout
    after = {part: store.load(part) for part in range(14)}
    assert None not in after.values()
    assert sum(before[part] != after[part] for part in range(14)) == 1
    assert not (run / "private" / "votes.npz").exists()
    assert not (run / "private" / "epsilon.json").exists()
    text = (folder / "private.csv").read_text()
    (folder / "private.csv").write_text("\n".join(line for line in text.split("\n") if not line.endswith(",p17")))
    again = in_process("run", str(folder / "own.yaml"), "--out", str(run), "--resume", "--json")
    assert again.returncode == 0, again.stderr
    np.testing.assert_array_equal(np.load(run / "labels.npz")["labels"], labels)
    assert json.loads((run / "private" / "epsilon.json").read_text())["epsilon_data_dependent"] is None
    assert {part: store.load(part) for part in range(14)} == after
    assert in_process("ledger", "verify", str(run)).returncode == 0
    missing = in_process("forget", str(run), "--id", "p17")
    assert missing.returncode == 2
    assert "no record has that id" in missing.stderr  # it is gone from the source by now


SMALL = ["backend=local", "n_teachers=6", "teachers=[{name: sklearn.naive_bayes.GaussianNB}]"]


def test_only_parts_that_held_the_record_are_touched(tmp_path: Path) -> None:
    """Of overlapping parts several, or none; and rows are those of the source, whatever was forgotten before."""
    own_data(tmp_path)
    overlapping = "mechanism={name: msamp, epsilon: 1, query_delta: 1e-6, sampling_rate: 0.2}"
    config = load_config(tmp_path / "own.yaml", [*SMALL, overlapping])
    public, private = load(config.data, None, tmp_path)
    records = records_of(private)
    with Run.create(tmp_path / "run", config, resume=False) as directory:
        drop_forgotten(public, records, directory)
        parts = parts_of(config, records, directory.key)
        held_by = [[part for part, rows in enumerate(parts) if row in rows] for row in range(len(records))]
        record, outside = max(range(len(records)), key=lambda row: len(held_by[row])), held_by.index([])
        assert len(held_by[record]) > 1
        assert forget(config, public, records, directory, [f"p{record}"], []) == len(held_by[record])
        assert {int(path.name) for path in (directory.private / "teachers").glob("0*")} == set(held_by[record])
        with pytest.raises(DataError, match="forgotten already"):
            forget(config, public, records, directory, [f"p{record}"], [])
        assert forget(config, public, records, directory, [], [outside]) == 0
        assert Version.of(directory).version == 3
        rest = records_of(drop_forgotten(public, records, directory))
        assert not {f"p{record}", f"p{outside}"} & set(rest.ids or ())
        assert len(rest) == len(records) - 2
        with pytest.raises(DataError, match="no such row"):
            forget(config, public, records, directory, [], [10_000])
        with pytest.raises(RunError, match="nothing to forget"):
            forget(config, public, records, directory, [], [])


def test_a_crash_while_forgetting_is_made_good(tmp_path: Path) -> None:
    own_data(tmp_path)
    config = load_config(tmp_path / "own.yaml", SMALL)
    public, private = load(config.data, None, tmp_path)
    records = records_of(private)
    with Run.create(tmp_path / "run", config, resume=False) as directory:
        drop_forgotten(public, records, directory)
        forget(config, public, records, directory, ["p5"], [])
        done = Version.of(directory)
        store = TeacherFiles(directory.private, directory.key)
        digest = (directory.private / "records_digest").read_text()
        begun = done.model_copy(update={"pending": (4,), "data_digest": digest})
        begun.store(directory)  # as if it had ended right after it began
        store.save(4, b"of the forgotten record")
        (directory.private / "votes.npz").write_bytes(b"")
        (directory.private / "records_digest").write_text("of the data before")
        with pytest.raises(DataError, match="other data"):
            drop_forgotten(public, replace(records, X=records.X + 1), directory)
        drop_forgotten(public, records, directory)
        assert Version.of(directory) == done
        assert store.load(4) is None
        assert not (directory.private / "votes.npz").exists()
