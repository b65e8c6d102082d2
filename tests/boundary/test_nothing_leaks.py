"""Canaries: runs on data whose values, file names and number are easy to find, and a search of all that leaves.

Teachers print and raise what they see. Searched are standard output and error, every file that may leave, what
`pate report` and `pate fetch` make of them, and the files that Ray keeps of its processes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate import cli
from pate.boundary._aggregator import RemoteAggregator
from pate.cli._cluster import download
from pate.errors import RunError
from pate.ledger import Ledger, Limits
from pate.mechanisms import GNMax

N_RECORDS, N_TEACHERS = 1237, 8
VALUE = "0.8675309"  # one column of every private record
WHO = "mrs-canary"
FOLDER, FILE, ID_COLUMN, IGNORED = "ward-of-dr-crippen", "hiv-positive.csv", "patient_no", "viral_load"
VALUES = (VALUE, WHO, "4711.25")
NAMES = (FOLDER, FILE, "hiv-positive", ID_COLUMN, IGNORED)
COUNTS = (str(N_RECORDS), f"{N_RECORDS:,}")

TEACHERS = '''"""Teachers that tell whoever listens. `heard` shows that they did."""

import logging, os, pathlib, sys, warnings
import numpy as np
from pate.errors import DataError
from sklearn.base import BaseEstimator

HEARD = pathlib.Path(__file__).with_name("heard")


class Talks(BaseEstimator):
    def fit(self, X, y):
        text = f"{len(X)} records: {X[:3].tolist()} {float(X[0, 2]):.7f}"
        if X[0, 2]:  # private
            HEARD.write_text(text)
        print(text)
        print(text, file=sys.stderr, flush=True)
        logging.error(text)
        warnings.warn(text)
        os.write(1, text.encode())
        self.labels = np.unique(y)
        self.centres = np.array([X[y == label].mean(axis=0) for label in self.labels])
        self.text = text
        return self

    def predict(self, X):
        print(self.text)
        return self.labels[((X[:, None] - self.centres) ** 2).sum(axis=2).argmin(axis=1)]


class Refuses(Talks):
    def fit(self, X, y):
        super().fit(X, y)
        if X[0, 2]:
            raise DataError(self.text)
        return self


class CannotPredict(Talks):
    def predict(self, X):
        if len(X) > 3:
            raise ValueError(self.text)
        return super().predict(X)
'''
CONFIG = f"""# pate run canary.yaml --data-dir {FOLDER}
name: wards
n_teachers: {N_TEACHERS}
data:
  source: csv
  private: {FILE}
  public: public.csv
  test: test.csv
  label: kind
  id: {ID_COLUMN}
  ignore: [{IGNORED}]
  classes: [cat, dog]
teachers:
  - {{name: talking.Talks, weight: 6}}
  - {{name: talking.Refuses}}
  - {{name: talking.CannotPredict}}
mechanism: {{name: lnmax, scale: 1}}
budget: {{max_queries: 30}}
student: {{name: supervised, params: {{estimator: sklearn.linear_model.LogisticRegression}}}}
ray: {{workers: 1}}
"""


def write_data(folder: Path) -> None:
    """Private records have the canary value in a column in which others have zeros, but for one public example."""
    rng = np.random.default_rng(0)
    for name, n, mark in ((FILE, N_RECORDS, VALUE), ("public.csv", 40, "0"), ("test.csv", 50, "0")):
        kinds = rng.integers(2, size=n)
        lines = [f"length,weight,mark,kind,{ID_COLUMN},{IGNORED}"]
        lines += [
            f"{k + rng.normal(0, 0.3):.4f},{k + rng.normal(0, 0.3):.4f},{mark},{['cat', 'dog'][k]},{WHO}-{i},4711.25"
            for i, k in enumerate(kinds)
        ]
        if name == "public.csv":  # else the value were beyond what is public, and nothing were left of it
            lines[-1] = lines[-1].replace(",0,", ",1,")
        (folder / name).write_text("\n".join(lines) + "\n")


@dataclass(frozen=True)
class Shown:
    status: int
    out: str
    err: str

    @property
    def everything(self) -> str:
        return self.out + self.err


Pate = Callable[..., Shown]


def called(arguments: Sequence[str], capfd: pytest.CaptureFixture[str]) -> Shown:
    """`pate …` in this process, which Ray is running in; standard error is no terminal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pate", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
            raise SystemExit(0)
    out, err = capfd.readouterr()
    return Shown(int(ended.value.code or 0), out, err)


@pytest.fixture
def pate(capfd: pytest.CaptureFixture[str]) -> Pate:
    return lambda *arguments: called(arguments, capfd)


def search(texts: dict[str, str], secrets: Sequence[str]) -> None:
    for place, text in texts.items():
        found = [secret for secret in secrets if secret in text]
        assert not found, (place, found)


@pytest.mark.usefixtures("local_ray")
def test_a_run_tells_nothing(
    tmp_path: Path, pate: Pate, published: Callable[[Path], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = tmp_path / FOLDER, tmp_path / "out" / "run"
    data.mkdir()
    write_data(data)
    (tmp_path / "canary.yaml").write_text(CONFIG)
    (tmp_path / "talking.py").write_text(TEACHERS)
    monkeypatch.syspath_prepend(tmp_path)
    command = ["run", str(tmp_path / "canary.yaml"), "--data-dir", str(data), "--out", str(out)]

    begun = pate(*command, "--log-json", "--json")
    assert begun.status == 0, begun.err
    assert VALUE in (tmp_path / "heard").read_text()
    failures = json.loads((out / "private" / "failures.json").read_text())["teachers"]
    assert list(failures.values()) == ["DataError"]
    assert not (out / "private" / "evaluation.json").exists()
    report = json.loads(begun.out)
    assert report["benchmark"] is None

    evaluation = {"mean_teacher_accuracy": 0.987654, "plurality_accuracy": 0.976543}  # as if there had been one
    (out / "private" / "evaluation.json").write_text(json.dumps(evaluation))
    again = pate(*command, "--resume")
    assert again.status == 0, again.err
    assert "ε to publish" in again.err
    made = pate("report", str(out))
    assert made.status == 0, made.err
    names = download(f"file://{out}", tmp_path / "fetched")
    assert {"report.json", "report.html", "privacy.txt", "labels.npz", "student"} <= set(names)

    printed = {"run": begun.everything, "resume": again.everything, "report": made.everything}
    left = published(out) | {f"fetched {name}": text for name, text in published(tmp_path / "fetched").items()}
    assert {"report.html", "report.json", "student/student.json", "fetched privacy.txt"} <= left.keys()
    search(printed | left, [*VALUES, *NAMES, *COUNTS, str(tmp_path / "canary.yaml"), "98.8 %", "97.7 %", "0.98765"])
    for place, text in (printed | left).items():
        assert not re.search(r"\d[\d,.]* (private )?records", text), place
        assert "teachers failed" not in text, place
        assert "will take about" not in text, place  # it goes with the number of records
    for name in ("labels.npz", "student/model.skops"):
        content = (out / name).read_bytes()
        assert not [value for value in VALUES + NAMES if value.encode() in content], name

    kept = {str(path): path.read_bytes() for path in ray_files()}
    assert any("worker" in name and name.endswith(".err") for name in kept)
    secrets = [value.encode() for value in VALUES] + [np.float32(VALUE).tobytes()]
    assert not [(name, secret) for name, content in kept.items() for secret in secrets if secret in content]


def ray_files() -> list[Path]:
    """What Ray's processes of this session have printed and logged."""
    import ray

    session = Path(ray._private.worker._global_node.get_session_dir_path())  # type: ignore[attr-defined]
    return [path for path in (session / "logs").rglob("*") if path.is_file()]


@pytest.mark.usefixtures("local_ray")
def test_what_ray_keeps_of_the_aggregators_error_quotes_nothing(tmp_path: Path) -> None:
    import ray

    key, limits = b"q" * 32, Limits(10, 10, repr(GNMax(4.0)))
    X, secret = np.zeros((2, 1), dtype=np.float32), VALUE
    aggregator = RemoteAggregator(
        mechanism=GNMax(4.0),
        open_ledger=lambda: Ledger(tmp_path / "ledger.db", key, tmp_path / "head", "run", limits),
        private=tmp_path,
        key=key,
        n_parts=20,
    )

    def voters(_: Any) -> Any:
        raise ValueError(f"votes were {secret}")

    with pytest.raises(ray.exceptions.RayTaskError, match="Failed") as kept:
        ray.get(aggregator._actor.collect.remote(X, voters))
    assert VALUE not in str(kept.value)
    with pytest.raises(RunError, match=r"the aggregator failed \(ValueError\)") as caught:
        aggregator.collect(X, voters)
    assert VALUE not in str(caught.value)
    aggregator.kill()


def changed(folder: Path, row: int, column: int, value: str) -> None:
    path = folder / FILE
    lines = path.read_text().splitlines()
    fields = lines[row].split(",")
    fields[column] = value
    lines[row] = ",".join(fields)
    path.write_text("\n".join(lines) + "\n")


def as_npz(folder: Path, **arrays: Any) -> list[str]:
    X = np.full((N_RECORDS, 2), float(VALUE), dtype=np.float32)
    content = {"X_private": X, "y_private": np.resize([0, 1], N_RECORDS), "X_public": np.zeros((40, 2), np.float32)}
    np.savez(folder / "hiv-positive.npz", **(content | arrays))
    return ["--set", "data={source: npz, file: hiv-positive.npz, classes: [0, 1]}"]


def as_shards(folder: Path) -> list[str]:
    (folder / "hiv-positive-2.csv").write_bytes((folder / FILE).read_bytes())
    return ["--set", "data.private=[hiv-positive.csv, hiv-positive-2.csv]"]


def with_shards(change: Callable[[Path], Any]) -> Callable[[Path], list[str]]:
    def both(folder: Path) -> list[str]:
        change(folder)
        return as_shards(folder)

    return both


CELL = f"canary{VALUE}"
FAULTS: dict[str, Callable[[Path], Any]] = {
    "a number that is none": lambda folder: changed(folder, 5, 0, CELL),
    "a label that is not configured": lambda folder: changed(folder, 5, 3, CELL),
    "an infinite number": lambda folder: changed(folder, 5, 0, "inf"),
    "a field too many": lambda folder: changed(folder, 5, 0, f"1,{CELL}"),
    "bytes that are no text": lambda folder: (folder / FILE).write_bytes(
        (folder / FILE).read_bytes() + b"\xff" + CELL.encode()
    ),
    "a field too large": lambda folder: changed(folder, 5, 0, CELL * 20_000),
    "another word for the split": lambda folder: ["--set", f"data.split={IGNORED}"],
    "shards: a number that is none": with_shards(lambda folder: changed(folder, 5, 0, CELL)),
    "shards: a label that is not configured": with_shards(lambda folder: changed(folder, 5, 3, CELL)),
    "shards: a field too many": with_shards(lambda folder: changed(folder, 5, 0, f"1,{CELL}")),
    "npz: labels too few": lambda folder: as_npz(folder, y_private=np.zeros(N_RECORDS - 1)),
    "npz: labels of texts": lambda folder: as_npz(folder, y_private=np.array([CELL] * N_RECORDS)),
    "npz: objects": lambda folder: as_npz(folder, X_private=np.array([[CELL, {}]] * 3, dtype=object)),
    "npz: texts": lambda folder: as_npz(folder, X_private=np.array([[CELL, "1"]] * N_RECORDS)),
    "npz: other shapes": lambda folder: as_npz(folder, X_private=np.zeros((N_RECORDS, 3), np.float32)),
    "npz: ids too few": lambda folder: as_npz(folder, id_private=np.arange(N_RECORDS - 1)),
    "too many teachers": lambda folder: ["--set", "n_teachers=400"],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_about_private_data_quotes_no_value_and_no_count(fault: str, tmp_path: Path, pate: Pate) -> None:
    """It may name file, column and row."""
    write_data(tmp_path)
    (tmp_path / "canary.yaml").write_text(CONFIG.replace("talking.Talks", "sklearn.naive_bayes.GaussianNB"))
    (tmp_path / "talking.py").write_text(TEACHERS)
    options = FAULTS[fault](tmp_path)
    options = options if isinstance(options, list) else []
    shown = pate("run", str(tmp_path / "canary.yaml"), "--out", str(tmp_path / "run"), *options)
    assert shown.status == 2, shown.err
    assert shown.err.splitlines()[-1].startswith("pate: error: ")
    search({fault: shown.everything.replace(str(tmp_path), "")}, ["canary0", *VALUES, *COUNTS, str(N_RECORDS - 1)])
