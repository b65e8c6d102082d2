"""`Run`: one owner of file names and of what may leave, a folder or a URL alike; every command takes both."""

from __future__ import annotations

import ast
import gc
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import pate
from pate import pipeline
from pate.baselines._run import run_baseline
from pate.cli import app
from pate.config import BaselineConfig, Config, parse_config
from pate.data._sources import load
from pate.data.private import records_of
from pate.errors import PateError, RunError
from pate.report.schema import BaselineReport, Report
from pate.runs import _files as files
from pate.runs.run import Run
from pate.storage import open_storage
from pate.voters.teachers._checkpoints import TeacherFiles

CONFIG = {
    "name": "small",
    "n_teachers": 12,
    "data": {"source": "digits"},
    "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
    "mechanism": {"name": "gnmax", "sigma": 3},
    "budget": {"max_queries": 60, "delta": 1e-5},
    "student": {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}},
    "backend": "local",
}
ERM = {
    "name": "erm",
    "data": {"source": "digits"},
    "baseline": {"name": "dp_erm", "params": {"regularisation": 0.01}},
    "budget": {"epsilon": 50},
}
_OWN_FOLDERS = {  # names of files that are not a run's
    ("cli/_init.py", files.CONFIG),  # what a user is offered to call a config
    ("ledger/ledger.py", files.LEDGER),
    ("reproduce/_run.py", files.SECONDS),
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A run and a baseline, both made by URL: the folders behind the URLs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        folder = tmp_path_factory.mktemp("stores")
        pipeline.run(parse_config(CONFIG), f"file://{folder}/run")
        run_baseline(parse_config(ERM, BaselineConfig), f"file://{folder}/erm")
        yield {name: folder / name for name in ("run", "erm")}


@pytest.fixture
def copied(stores: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The same again, to be changed, and a folder for temporary files that is watched."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return {name: Path(shutil.copytree(path, tmp_path / name)) for name, path in stores.items()}


def invoke(*arguments: object) -> str:
    shown = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    assert not list(Path(tempfile.gettempdir()).iterdir())  # no copy is left
    return str(shown.stdout)


def url(path: Path) -> str:
    return f"file://{path}"


def test_file_names_are_written_in_one_place() -> None:
    """No module outside pate/runs builds the path of a run's file; sentences and docstrings may name one."""
    names = {value for key, value in vars(files).items() if key.isupper() and isinstance(value, str) and "." in value}
    assert {"config.yaml", "report.json", "votes.npz", "student.json", "ledger.head"} <= names
    root, found = Path(pate.__file__).parent, []
    for path in root.rglob("*.py"):
        module = path.relative_to(root).as_posix()
        texts = [n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)]
        for text in (text for text in texts if isinstance(text, str) and len(text.split()) == 1):
            written = {name for name in names if text == name or text.endswith(f"/{name}")}
            found += [(module, name) for name in written if not module.startswith("runs/")]
    assert set(found) <= _OWN_FOLDERS


def test_what_a_run_holds_is_read_by_type(stores: dict[str, Path]) -> None:
    for place in (stores["run"], url(stores["run"])):
        with Run.load(place) as run:
            assert run.place == str(place)
            assert isinstance(run.config, Config)
            assert isinstance(run.report, Report)
            assert run.labels is not None
            assert len(run.labels.labels) == 60
            assert run.key == (stores["run"] / "private" / "key").read_bytes()
            X = load(run.config.data, None, Path())[0].X_test
            names = np.array(run.report.classes)
            np.testing.assert_array_equal(names[run.student().predict(X)], run.predictor().predict(X))
    with Run.load(url(stores["erm"])) as run:
        assert isinstance(run.config, BaselineConfig)
        assert isinstance(run.report, BaselineReport)
        assert run.labels is None
        predicted = run.predictor().predict(X)
        np.testing.assert_array_equal(predicted, names[run.model().predict(X.reshape(len(X), -1))])
        assert run.predictor().predict_proba(X) is None


def test_what_may_leave_is_known_by_name(stores: dict[str, Path]) -> None:
    leaves = Run(stores["run"]).may_leave()
    absent = {files.MODEL, files.STUDENTS, files.AUDIT, files.AUDIT_PAGE}
    assert {name.split("/")[0] for name in leaves} == {*files.MAY_LEAVE} - absent
    assert {"model/model.json", "model/model.safetensors"} <= set(Run(stores["erm"]).may_leave())
    everything = {path.relative_to(stores["run"]).as_posix() for path in stores["run"].rglob("*") if path.is_file()}
    stays = everything - set(leaves)
    assert stays
    assert all(name == files.CONFIG or name.startswith("private/") for name in stays)


def test_a_copy_is_private_without_what_is_not_needed_and_goes_away(copied: dict[str, Path]) -> None:
    run = Run.load(url(copied["run"]))
    assert run.path.stat().st_mode & 0o777 == 0o700
    assert run.votes_file.exists()
    assert not (run.private / files.TEACHERS).exists()
    assert not (run.private / "ledger").exists()
    path = run.path
    del run
    gc.collect()
    assert not path.exists()
    run = Run.load(url(copied["run"]), inside=False)
    assert run.student_card.exists()
    assert not run.private.exists()
    run.close()
    assert not run.path.exists()


def test_a_place_without_a_run_is_named_as_the_user_knows_it(copied: dict[str, Path], tmp_path: Path) -> None:
    for place in (tmp_path / "nothing", url(tmp_path / "nothing")):
        with pytest.raises(RunError, match=f"^{place}: is not a run directory$"):
            Run.load(place)
    (copied["run"] / "report.json").write_text("{")
    with pytest.raises(RunError, match=f"^{url(copied['run'])}/report.json: cannot be read"):
        invoke("report", url(copied["run"]))
    (copied["run"] / "student" / "model.skops").unlink()
    np.savez(tmp_path / "in.npz", X=np.zeros((1, 8, 8), dtype=np.float32))
    with pytest.raises(PateError, match=f"^{url(copied['run'])}/student/model.skops: missing"):
        invoke("predict", url(copied["run"]), "--input", tmp_path / "in.npz")


def test_report_of_a_url(copied: dict[str, Path]) -> None:
    store, place = copied["run"], url(copied["run"])
    before = (store / "report.html").read_bytes()
    for path in (store / "report.html", store / "privacy.txt", store / "private" / "report.html"):
        path.unlink()
    shown = invoke("report", place)
    assert f"written: {place}/report.html, {place}/privacy.txt, {place}/plots" in shown
    assert f"private: do not publish: {place}/private/report.html" in shown
    assert (store / "report.html").read_bytes() == before
    assert (store / "private" / "report.html").stat().st_mode & 0o777 == 0o600


def test_predict_with_a_url_a_student_folder_and_a_baseline(copied: dict[str, Path], tmp_path: Path) -> None:
    X = load(parse_config(CONFIG).data, None, Path())[0].X_test
    np.savez(tmp_path / "in.npz", X=X)
    student = {
        invoke("predict", place, "--input", tmp_path / "in.npz")
        for place in (copied["run"], url(copied["run"]), url(copied["run"] / "student"))
    }
    assert len(student) == 1
    shown = [
        json.loads(invoke("predict", place, "--input", tmp_path / "in.npz", "--json"))
        for place in (copied["erm"], url(copied["erm"]), copied["erm"] / "model", url(copied["erm"] / "model"))
    ]
    assert shown[1:] == shown[:1] * 3
    assert shown[0]["baseline"] == "dp_erm"
    assert (shown[0]["epsilon"], shown[0]["probabilities"]) == (50, None)
    report = json.loads((copied["erm"] / "report.json").read_text())
    truth = load(parse_config(CONFIG).data, None, Path())[0].y_test
    right = np.array(shown[0]["labels"]) == np.array(report["classes"])[truth]
    assert right.mean() == report["student"]["accuracy"]
    np.savez(tmp_path / "in.npz", X=X[:, 1:])
    with pytest.raises(PateError, match="has shape"):
        invoke("predict", url(copied["erm"]), "--input", tmp_path / "in.npz")


def test_compare_urls(copied: dict[str, Path], tmp_path: Path) -> None:
    def compared(*more: str) -> list[dict[str, Any]]:
        shown = invoke("compare", *map(url, copied.values()), "--out", tmp_path / "c", "--json", *more)
        return list(json.loads(shown)["entries"])

    assert {name for entry in compared() for name in entry["names"]} == set(map(url, copied.values()))
    kinds = [entry["epsilon_kind"] for entry in compared("--with-private")]
    assert kinds.count("data-dependent") == 1


def test_ledger_of_a_url(copied: dict[str, Path]) -> None:
    shown = json.loads(invoke("ledger", "verify", url(copied["run"]), "--json"))
    assert shown["unchanged"]
    assert set(shown["pinned"]) == {"labels.npz", "student/student.json"}
    (charge,) = json.loads(invoke("ledger", "show", url(copied["erm"]), "--json"))["charges"]
    assert (charge["asked"], charge["answered"]) == (1, 1)


def test_baseline_at_a_url(stores: dict[str, Path], copied: dict[str, Path], tmp_path: Path) -> None:
    """It was made there; finished it is not trained again, nor is one that was stored and has no report yet."""
    (tmp_path / "erm.yaml").write_text((stores["erm"] / "config.yaml").read_text())
    before = (copied["erm"] / "model" / "model.safetensors").read_bytes()
    command = ("baseline", tmp_path / "erm.yaml", "--out", url(copied["erm"]))
    assert json.loads(invoke(*command, "--resume", "--json"))["run"] == url(copied["erm"])
    with pytest.raises(RunError, match="add resume=True"):
        invoke(*command)
    for name in ("report.json", "model/model.json", "model/model.safetensors"):  # as a kill before publishing leaves it
        (copied["erm"] / name).unlink()
    invoke(*command, "--resume")
    assert (copied["erm"] / "model" / "model.safetensors").read_bytes() == before


def test_forgetting_at_a_url_erases_there(copied: dict[str, Path]) -> None:
    store = copied["run"]
    teachers = TeacherFiles(store / "private", (store / "private" / "key").read_bytes(), trusted=True)
    before = {part: teachers.load(part) for part in range(12)}
    assert "version 2" in invoke("forget", url(store), "--rows", "3")
    after = {part: teachers.load(part) for part in range(12)}
    assert None not in after.values()
    assert sum(before[part] != after[part] for part in range(12)) == 1
    for name in ("votes.npz", "epsilon.json", "evaluation.json", "report.html"):
        assert not (store / "private" / name).exists()
    with pytest.raises(PateError, match="forgotten already"):
        invoke("forget", url(store), "--rows", "3")
    pipeline.run(parse_config(CONFIG), url(store), resume=True)
    invoke("ledger", "verify", url(store))
    with pytest.raises(RunError, match="has no teachers"):
        invoke("forget", url(copied["erm"]), "--rows", "3")


def test_who_did_not_see_that_records_were_forgotten_brings_nothing_back(copied: dict[str, Path]) -> None:
    """Their copy holds votes of the old teachers."""
    with Run.load(url(copied["run"])) as run:
        elsewhere = open_storage(url(copied["run"]))
        elsewhere.write({"private/ensemble.json": b"{}"})
        elsewhere.remove("private/votes.npz")
        run.votes_file.touch()
        with pytest.raises(RunError, match="forgotten there meanwhile"):
            run.sync()
    assert not (copied["run"] / "private" / "votes.npz").exists()


class Crashing:
    """A store that ends after so many changes, as a machine does."""

    def __init__(self, storage: Any, changes: int) -> None:
        self._storage, self._left = storage, changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def write(self, contents: dict[str, bytes]) -> None:
        for name, content in contents.items():
            self._change()
            self._storage.write({name: content})

    def remove(self, name: str) -> None:
        self._change()
        self._storage.remove(name)

    def _change(self) -> None:
        if self._left == 0:
            raise KeyboardInterrupt
        self._left -= 1


@pytest.mark.parametrize("changes", range(12))
def test_wherever_a_forgetting_is_cut_off_it_can_be_repeated(changes: int, copied: dict[str, Path]) -> None:
    """And votes of the old teachers are never there beside a run that says the record is forgotten."""
    from pate.followup import drop_forgotten, forget
    from pate.runs.run import Version

    store, config = copied["run"], parse_config(CONFIG)
    public, private = load(config.data, None, Path())
    records = records_of(private)
    with pytest.raises(KeyboardInterrupt), Run.create(url(store), config, resume=True) as run:
        run.storage = Crashing(run.storage, changes)
        forget(config, public, records, run, [], [3])
        run.sync()
        raise KeyboardInterrupt  # whole already
    left = Version.of(Run(store))
    if left.forgotten and left.pending is None:
        assert not (store / "private" / "votes.npz").exists()
    with Run.create(url(store), config, resume=True) as run:
        if not left.forgotten:
            forget(config, public, records, run, [], [3])
        assert len(records_of(drop_forgotten(public, records, run))) == len(records) - 1
        run.sync()
    assert (Version.of(Run(store)).version, Version.of(Run(store)).pending) == (2, None)
    assert not (store / "private" / "votes.npz").exists()
