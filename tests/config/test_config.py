"""Every mistake in a config is one line that names the key and what would do."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from support import REPOSITORY

import pate
from pate.baselines import build_baseline
from pate.config import load_baseline_config, load_config, read_yaml
from pate.errors import ConfigError
from pate.students import build_student

_CONFIGS = sorted((REPOSITORY / "configs").rglob("*.yaml"))


def test_there_are_configs() -> None:
    assert len(_CONFIGS) >= 2


@pytest.mark.parametrize("path", _CONFIGS, ids=lambda path: path.stem)
def test_every_config_parses_and_opens_with_its_command(path: Path) -> None:
    command = path.read_text().split()[2]
    assert path.read_text().startswith(("# pate run", "# pate baseline"))
    {"run": load_config, "baseline": load_baseline_config}[command](path)


@pytest.mark.parametrize("path", _CONFIGS, ids=lambda path: path.stem)
def test_every_config_gives_its_student_or_baseline_parameters_that_it_has(path: Path) -> None:
    content = read_yaml(path)
    public = {"epsilon": 1.0, "delta": 1e-6, "n_records": 1_000, "classes": [0, 1], "random_state": 0}
    try:
        if "baseline" in content:
            built = build_baseline(content["baseline"]["name"], content["baseline"]["params"], public)
        else:
            built = build_student(content["student"]["name"], content["student"].get("params", {}), random_state=0)
        assert callable(built.fit)
    except ConfigError as error:
        if "'efficientnet_lite0.safetensors': no such file" not in str(error):  # weights that have to be fetched first
            raise


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("mechanism.sgima=3", ["mechanism.sgima", "did you mean 'sigma'"]),
        ("bugdet.delta=1", ["bugdet", "did you mean 'budget'"]),
        ("budget.dleta=1", ["budget.dleta", "did you mean 'delta'"]),
        ("teachers.0.wieght=2", ["teachers.0.wieght", "did you mean 'weight'"]),
        ("data.source=mnits", ["data.source = 'mnits'", "did you mean 'mnist'"]),
        ("n_teachers=many", ["n_teachers = 'many'", "whole number"]),
        ("n_teachers=1", ["n_teachers = 1", "at least 2"]),
        ("budget.delta=2", ["budget.delta = 2", "below 1"]),
        ("budget.max_queries=0", ["budget.max_queries = 0"]),
        ("budget.epsilon=0", ["budget.epsilon = 0", "above 0"]),
        ("budget.epsilon=-1", ["budget.epsilon = -1", "above 0"]),
        ("name=../elsewhere", ["name = '../elsewhere'"]),
        ("name=a/b", ["name = 'a/b'"]),
        ("budget.sanitise={order: 5, beta: 0.4}", ["budget.sanitise", "must lie between"]),
        ("mechanism={name: msvec, epsilon: 1, delta: 1e-3, unstable: 2, max_queries: 1000}", ["budget.delta"]),
        ("mechanism.sigma=-1", ["mechanism", "-1"]),
        ("mechanism.sigma=abc", ["mechanism", "abc"]),
        ("mechanism.name=gmax", ["mechanism.name = 'gmax'", "did you mean 'gnmax'"]),
        ("mechanism.name=lnmax", ["mechanism.sigma", "lnmax"]),
        ("nonsense", ["overrides='nonsense'", "key=value"]),
        ("teachers.9.weight=1", ["teachers.9.weight"]),
        ("n_teachers=[1", ["n_teachers", "YAML"]),
        ("name=%d.%m.%Y", ["not valid YAML", """put it into quotes: 'name="%d.%m.%Y"'"""]),
        ("name=,", ["not valid YAML", """put it into quotes: 'name=","'"""]),
        ("name=|", ["YAML takes | for itself", """put it into quotes: 'name="|"'"""]),
        ("name=#1", ["YAML takes # for itself", """'name="#1"'"""]),
        ("name=*all", ["aliases", """'name="*all"'"""]),
        ("data={dates: {born: %d.%m.%Y}}", ["not valid YAML", 'put text with signs into quotes, such as "%d.%m.%Y"']),
        ("data={source: csv, label: y, classes: 'cat,dog'}", ["data.classes", "must be a list: write [cat, dog]"]),
        ("data={source: csv, label: 5, classes: [a, b]}", ["data.label = 5: must be text, in quotes"]),
        ("mechanism.sigma=1,5", ["mechanism.sigma = '1,5'", "write 1.5, with a point"]),
        ("n_teachers=1,000", ["n_teachers = '1,000'", "write 1000, without commas"]),
        ("budget.epsilon=50%", ["budget.epsilon = '50%'", "write 0.5, without %"]),
        ("budget.max_queries='200'", ["budget.max_queries = '200'", "write 200, without quotes"]),
    ],
)
def test_a_wrong_override_is_one_clear_line(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override])
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", ["line", "not valid YAML"]),
        ("- 1", ["list"]),
        ("seed: 1\nseed: 2", ["'seed'", "twice"]),
        ("seed: 1", ["data, mechanism, student, n_teachers, teachers: missing; add them"]),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    for word in words:
        assert word in str(caught.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load_config("nowhere.yaml")


def test_overrides_apply_and_exponents_are_numbers(tmp_path: Path) -> None:
    config = load_config(None, ["mechanism.sigma=30", "teachers.0.params.C=1e-3", "budget.delta=1e-6"])
    assert config.mechanism["sigma"] == 30
    assert config.teachers[0].params["C"] == 1e-3
    assert config.budget.delta == 1e-6


def test_plain_values_are_a_config_and_stay_as_they_are() -> None:
    values = read_yaml(REPOSITORY / "configs" / "digits.yaml")
    before = deepcopy(values)
    config = load_config(values, ["mechanism.sigma=30"])
    assert load_config(config) is config
    assert config.mechanism["sigma"] == 30
    assert values == before


@pytest.mark.parametrize("nothing", [None, 5, []])
def test_a_run_of_nothing_is_refused(nothing: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="config: must be a file"):
        pate.run(nothing, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_stored_config_gives_the_same_digest(tmp_path: Path) -> None:
    config = load_config()
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml())
    assert load_config(path).digest() == config.digest()
    assert load_config(None, ["ray.workers=1"]).digest() == config.digest()
    assert load_config(None, ["seed=1"]).digest() != config.digest()
    assert read_yaml(path)["name"] == "digits"


LEDGER = "budget.ledger={path: shared, id: ledger-1}"


def test_whatever_a_run_promises_is_in_its_digest() -> None:
    """A run is resumed with the limits, the mechanism and the ledger it was begun with; a ledger may move."""
    digest = load_config(None, [LEDGER]).digest()
    changes = [["mechanism.sigma=7"], ["budget.max_queries=50"], ["budget.delta=1e-6"], ["budget.epsilon=100"]]
    changes += [
        ["n_teachers=60"],
        ["teachers.0.weight=7"],
        ["student.params.estimator=sklearn.tree.ExtraTreeClassifier"],
    ]
    changes += [["budget.ledger.id=ledger-2"]]
    for change in changes:
        assert load_config(None, [LEDGER, *change]).digest() != digest, change
    assert load_config(None, [LEDGER, "budget.ledger.path=elsewhere"]).digest() == digest


SANITISE = "budget.sanitise={order: 8, beta: 0.05, sigma_ss: 4}"


@pytest.mark.parametrize(
    ("other", "words"),
    [(LEDGER, "shared ledger does not count"), ("budget.query_selection=uncertainty", "query_selection 'uncertainty'")],
)
def test_a_sanitised_figure_goes_neither_with_a_shared_ledger_nor_with_doubt(other: str, words: str) -> None:
    load_config(None, [SANITISE])
    with pytest.raises(ConfigError, match=words):
        load_config(None, [SANITISE, other])


def test_no_more_answers_than_the_limit_and_than_questions() -> None:
    limits = {"": 100, "budget.max_answers=30": 30, "budget.max_answers=300": 100}
    for override, limit in limits.items():
        assert load_config(None, ["budget.max_queries=100", *filter(None, [override])]).budget.answer_limit == limit


def test_settings_are_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        load_config().seed = 3  # type: ignore[misc]
