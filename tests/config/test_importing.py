"""What a file from elsewhere may name: nothing of anybody else's is imported, not even to be refused."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from pate import pipeline
from pate.components._registry import config_folder, import_dotted, importing_only, make_importable
from pate.config import load_config
from pate.errors import ConfigError, NotTrusted
from pate.runs._console import Quiet
from pate.runs.run import Run


@pytest.mark.parametrize("module", ["sklearn_own", "pate_own", "own"])
def test_what_is_called_like_ours_is_not_even_imported(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w').close()\nclass Own: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with importing_only([]), pytest.raises(NotTrusted):
        import_dotted(f"{module}.Own", "key")
    assert not (tmp_path / "mark").exists()
    assert module not in sys.modules


def test_tests_of_scikit_learn_are_nobodys_classifiers() -> None:
    name = "sklearn.tests.test_base.MyEstimator"
    with importing_only([]) as guard, pytest.raises(NotTrusted):
        import_dotted(name, "key")
    assert guard.refused == [name]


def test_the_folder_of_an_untrusted_config_is_not_looked_in(tmp_path: Path) -> None:
    with importing_only([]):
        make_importable(tmp_path)
    assert config_folder() != tmp_path
    make_importable(tmp_path)
    assert config_folder() == tmp_path


def test_modules_of_one_name_beside_two_configs_do_not_mix(tmp_path: Path) -> None:
    """Each class stays what it is, with the files beside it; what is installed goes first."""
    places, path = [tmp_path / "first", tmp_path / "second"], list(sys.path)
    for number, place in enumerate(places):
        place.mkdir()
        (place / "helper_of_mine.py").write_text(f"NUMBER = {number}\n")
        (place / "json.py").write_text("raise RuntimeError('stands in for what is installed')\n")
        (place / "teacher_of_mine.py").write_text(
            "class Own:\n    def number(self):\n        from helper_of_mine import NUMBER\n        return NUMBER\n"
        )
    found: list[Any] = []
    for place in places:
        make_importable(place)
        found.append(import_dotted("teacher_of_mine.Own", "key"))
        assert import_dotted("json.JSONEncoder", "key") is json.JSONEncoder
        assert pickle.loads(pickle.dumps(found[-1]())).number() == places.index(place)
    make_importable(places[0])
    assert import_dotted("teacher_of_mine.Own", "key") is found[0]
    assert [own().number() for own in found[:1]] == [0]
    assert cloudpickle.loads(cloudpickle.dumps(found[1])) is not found[0]
    make_importable(tmp_path)
    with pytest.raises(ConfigError, match="cannot import 'teacher_of_mine'"):
        import_dotted("teacher_of_mine.Own", "key")
    assert sys.path == path


def test_a_run_of_a_loaded_config_knows_where_its_classes_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resumed from Python, in another working directory, it finds the student's class again, beside the config."""
    place, elsewhere = tmp_path / "place", tmp_path / "elsewhere"
    for folder in (place, elsewhere):
        folder.mkdir()
    (place / "student_of_mine.py").write_text(
        "from sklearn.naive_bayes import GaussianNB\n\n\nclass Own(GaussianNB):\n    pass\n"
    )
    content = {
        "data": {"source": "digits"},
        "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
        "n_teachers": 10,
        "backend": "local",
        "mechanism": {"name": "gnmax", "sigma": 5},
        "budget": {"max_queries": 40},
        "student": {"name": "supervised", "params": {"estimator": "student_of_mine.Own"}},
    }
    (place / "config.yaml").write_text(json.dumps(content))
    monkeypatch.chdir(elsewhere)
    config, out = load_config(place / "config.yaml"), tmp_path / "run"
    first = pipeline.run(config, out, console=Quiet(), pages=False)
    student = (out / "student" / "student.json").stat().st_mtime_ns
    again = pipeline.run(config, out, console=Quiet(), resume=True, pages=False)
    assert type(again.student.classifier_.estimator).__name__ == type(first.student.classifier_.estimator).__name__
    assert (out / "student" / "student.json").stat().st_mtime_ns == student
    with Run.load(out) as run:
        assert run.places[1] == place
