"""The allow-list: what of a config, and which fields, may leave a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pydantic import TypeAdapter

from pate.config import default_config_path, load_baseline_config, load_config, parse_config
from pate.data.public import PublicData
from pate.report._files import read_report, store_report, write_pages
from pate.report.schema import (
    LEFT_OUT,
    Method,
    Report,
    TeacherKind,
    published_config,
    published_method,
    published_params,
    published_yaml,
)
from pate.report.sections._pipeline import load_examples, save_examples

SECRETS = ("crippen", "hiv", "patient_no", "viral_load", "clinic-7", "s3://")
PRIVATE = {
    "name": "wards",
    "n_teachers": 20,
    "data": {
        "source": "csv",
        "private": "/srv/clinic-7/crippen/hiv.csv",
        "public": "s3://clinic-7/public.csv",
        "test": "/srv/clinic-7/test.csv",
        "label": "kind",
        "id": "patient_no",
        "ignore": ["viral_load"],
        "categories": {"sex": ["f", "m"]},
        "classes": ["cat", "dog"],
    },
    "teachers": [
        {"name": "my_teachers.make", "params": {"table": "hiv.csv", "C": 2, "kernel": "rbf", "home": "/srv/crippen"}},
        {"name": "sklearn.svm.SVC", "grid": {"C": [1, 10]}, "features": "hog"},
    ],
    "mechanism": {"name": "gnmax", "sigma": 5},
    "budget": {"max_queries": 10, "ledger": {"path": "/srv/clinic-7/hiv.ledger", "id": "ledger-clinic-7"}},
    "student": {"name": "supervised", "params": {"estimator": "sklearn.svm.SVC"}},
}


def test_names_of_files_columns_and_places_are_left_out() -> None:
    config = parse_config(PRIVATE)
    text = published_yaml(yaml.safe_load(config.to_yaml()))
    assert not [secret for secret in SECRETS if secret in text]
    shown = yaml.safe_load(text)
    assert shown["data"]["classes"] == ["cat", "dog"]
    assert shown["data"]["categories"] == {"sex": ["f", "m"]}
    assert [shown["data"][key] for key in ("private", "public", "test", "id", "ignore")] == [LEFT_OUT] * 5
    assert shown["data"]["split"] is None  # nothing was said: nothing is left out
    assert shown["teachers"][0]["params"] == {"table": LEFT_OUT, "C": 2, "kernel": "rbf", "home": LEFT_OUT}
    assert shown["teachers"][1]["grid"] == {"C": [1, 10]}
    assert shown["budget"]["ledger"] == LEFT_OUT
    assert shown["mechanism"] == {"name": "gnmax", "sigma": 5}


def test_a_key_nobody_thought_of_is_left_out() -> None:
    for section in (None, "data", "budget", "ray", "student"):
        for value in ("of Mrs Smith", "Smith"):  # a word by itself is a parameter's, where the key is known
            content: dict[str, Any] = {"new": value}
            shown = published_config({section: content} if section else content)
            assert (shown[section] if section else shown) == {"new": LEFT_OUT}


def test_names_of_parameters_and_methods_are_looked_at_too() -> None:
    named = {"of Mrs Smith": 1, "C": 2}
    assert published_params(named) == {LEFT_OUT: 1, "C": 2}
    method = {"name": "pate.own.Method", "C": 2, "table": "/srv/hiv.csv"}
    shown = {"name": "pate.own.Method", "C": 2, "table": LEFT_OUT}
    assert published_method(method) == TypeAdapter(Method).validate_python(method) == shown


@pytest.mark.parametrize("path", sorted(default_config_path().parent.glob("*.yaml")), ids=lambda path: path.stem)
def test_nothing_is_left_out_of_our_own_configs(path: Path) -> None:
    baseline = "baseline" in yaml.safe_load(path.read_text())
    config = load_baseline_config(path) if baseline else load_config(path)
    content = config.model_dump(mode="json")
    shown = published_config(content)
    assert not {key for key in shown["data"] if shown["data"][key] == LEFT_OUT}
    pretrained = "name: pretrained" in path.read_text()
    files = {"weights", "network"} if pretrained else set()  # a file, and no class by its name
    files |= {"stored"} if "stored" in content else set()  # a file of votes
    files |= {"checkpoint"} if "checkpoint:" in path.read_text() else set()
    assert set(keys_left_out({key: value for key, value in shown.items() if key != "data"})) == files


def keys_left_out(content: Any, key: str = "") -> Iterator[str]:
    """The keys whose value is left out, at any depth."""
    if content == LEFT_OUT:
        yield key
    for name, value in content.items() if isinstance(content, dict) else ():
        yield from keys_left_out(value, name)
    for value in content if isinstance(content, list) else ():
        yield from keys_left_out(value, key)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3, True),
        (None, True),
        ("rbf", True),
        ("sklearn.svm.SVC", True),
        ("hiv.csv", False),
        ("/srv/data", False),
        ("C:\\data", False),
        ("s3://bucket/x", False),
        ("Mrs Smith", False),
        ("x" * 41, False),
        ("mrs@smith", False),
        (b"bytes", False),
    ],
)
def test_a_parameter_is_a_number_a_word_or_a_class(value: object, shown: bool) -> None:
    assert published_params({"given": [value]}) == {"given": [value if shown else LEFT_OUT]}
    assert TeacherKind(name="x", params={"given": value}, teachers=1).params["given"] == (value if shown else LEFT_OUT)


def test_a_mechanisms_own_parameters_are_looked_at_too(finished_run: Path) -> None:
    content = json.loads((finished_run / "report.json").read_text())
    content["mechanism"]["note"] = "/srv/crippen"
    assert Report.model_validate(content).mechanism["note"] == LEFT_OUT


@pytest.fixture
def copied(finished_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


@pytest.mark.parametrize("data", ["digits", "csv"])
def test_the_page_shows_the_list_alone(copied: Path, data: str) -> None:
    """Also where report and config of an earlier version hold more; of a table it says what names are published."""
    (copied / "config.yaml").write_text(parse_config(PRIVATE).to_yaml())
    report = read_report(copied)
    assert isinstance(report, Report)
    store_report(copied, report.model_copy(update={"data": data}))
    content = json.loads((copied / "report.json").read_text())
    content["voters"]["teachers"][0]["params"] = {"table": "/srv/clinic-7/hiv.csv"}
    (copied / "report.json").write_text(json.dumps(content))
    write_pages(copied, images=False)
    page = (copied / "report.html").read_text()
    assert not [secret for secret in SECRETS if secret in page]
    assert "&lt;left out&gt; stands for what is not published here" in page
    assert "n_teachers: 20" in page
    assert "sex:" in page
    about = "The columns that the model takes and their categories are published: they are on its card"
    assert (about in page) == (data == "csv"), "digits have no columns"


def test_only_these_fields_leave(finished_run: Path) -> None:
    """The list. Whoever adds a field says here that it may leave; fields of the report are in its schema."""
    card = json.loads((finished_run / "student" / "student.json").read_text())
    known = {"student", "params", "learned", "present", "network", "classes", "input", "shape", "features"}
    assert card.keys() <= known | {"columns", "range", "epsilon", "delta", "mechanism", "ledger", "files"}
    arrays = {
        "labels.npz": {"labels", "rows", "classes", "ledger_link", "ledger_code"},
        "plots/examples.npz": {"images", "rows", "labels", "truth"},
    }
    for name, fields in arrays.items():
        with np.load(finished_run / name) as archive:
            assert set(archive.files) == fields


def test_true_labels_are_shown_of_benchmarks_alone(tmp_path: Path) -> None:
    images, labels = np.zeros((5, 8, 8), dtype=np.float32), np.zeros(5, dtype=np.int64)
    for benchmark in (True, False):
        data = PublicData(images, ("a", "b"), y_public=labels, benchmark=benchmark)
        save_examples(tmp_path / "plots" / "examples.npz", data, labels)
        examples = load_examples(tmp_path / "plots" / "examples.npz")
        assert examples is not None
        assert ("truth" in examples) == benchmark
