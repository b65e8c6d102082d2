"""What nobody can mean is refused by the config itself, and by whoever starts Ray or builds a teacher."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import in_process
from support.small_data import own_data

from pate.cluster._session import check_workers
from pate.config import RaySettings, load_baseline_config, load_config
from pate.errors import ConfigError
from pate.networks._process import usable_cpus
from pate.runs._files import RunFiles
from pate.teachers import build_estimator

BASELINE = """data: {source: digits}
baseline: {name: dp_sgd}
budget: {epsilon: 1, delta: 1e-2}
"""


@pytest.mark.parametrize(
    ("overrides", "most"),
    [
        (["budget.delta=2e-3"], "1e-5"),
        (["budget.delta=9e-4"], "1e-5"),  # more than one over the 1,197 digits
        (["data={source: mnist}", "budget.delta=2e-5"], "1e-6"),
        (["data={source: arrays}", "budget.delta=1e-2"], "1e-4"),
    ],
)
def test_a_delta_that_is_no_promise(overrides: list[str], most: str) -> None:
    with pytest.raises(ConfigError, match=rf"budget\.delta = .*write {most} or less"):
        load_config(None, overrides)
    assert load_config(None, [*overrides, "budget.allow_large_delta=true"]).budget.allow_large_delta


def test_the_same_for_baselines(tmp_path: Path) -> None:
    (tmp_path / "baseline.yaml").write_text(BASELINE)
    with pytest.raises(ConfigError, match=r"budget\.delta = 0\.01"):
        load_baseline_config(tmp_path / "baseline.yaml")
    assert load_baseline_config(tmp_path / "baseline.yaml", ["budget.delta=1e-5"])


def test_a_threshold_that_only_luck_can_reach() -> None:
    mechanism = "mechanism={name: confident_gnmax, threshold: %s, sigma1: 30, sigma2: 10}"
    assert load_config(None, ["n_teachers=80", mechanism % 110])
    with pytest.raises(ConfigError, match=r"more votes than the 80 teachers have.*about 56"):
        load_config(None, ["n_teachers=80", mechanism % 111])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sklearn.linear_model.LinearRegression", "a regressor, not a classifier$"),
        ("sklearn.svm.SVR", r"a regressor, not a classifier; did you mean 'sklearn\.svm\.SVC'\?"),
        ("sklearn.ensemble.IsolationForest", "an outlier detector"),
        ("sklearn.mixture.GaussianMixture", "density estimator"),
    ],
)
def test_teachers_are_classifiers(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_estimator(name, {}, 0, "teachers.0.name")


def test_pipelines_and_searches_of_classifiers_are_classifiers() -> None:
    svc = {"name": "sklearn.svm.SVC"}
    for name, params in (
        ("sklearn.pipeline.Pipeline", {"steps": [["svc", svc]]}),
        ("sklearn.model_selection.GridSearchCV", {"estimator": svc, "param_grid": {"C": [1, 2]}}),
        ("sklearn.semi_supervised.SelfTrainingClassifier", {"estimator": {**svc, "params": {"probability": True}}}),
    ):
        assert build_estimator(name, params, 0, "teachers.0.name")


def test_a_number_of_workers_is_the_most() -> None:
    assert RaySettings(workers=4) == RaySettings(workers={"min": 1, "max": 4})  # type: ignore[arg-type]
    assert load_config(None, ["ray.workers=3"]).ray.workers.max == 3
    assert load_config(None, ["ray.workers={min: 2, max: 250}"]).ray.workers.min == 2
    assert RaySettings().workers.max is None
    assert RaySettings().worker_timeout_seconds == 600


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ray.workers=0", "ray.workers = 0"),
        ("ray.workers={min: 3, max: 2}", "more than max"),
        ("ray.worker_timeout_seconds=0", "ray.worker_timeout_seconds"),
        ("ray.gpus_per_worker=most", "auto"),
    ],
)
def test_mistakes_are_told_by_key(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(None, [text])


def test_resources_are_no_part_of_what_a_run_is_known_by() -> None:
    plain = load_config(None)
    given = load_config(None, ["teachers.0.resources={cpus: 2, labels: {zone: a}}", "ray.gpus_per_worker=0"])
    assert given.teachers[0].resources.cpus == 2
    assert given.digest() == plain.digest()
    assert "resources" not in plain.to_yaml()
    assert "zone: a" in given.to_yaml()


def test_more_workers_than_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    here = usable_cpus()
    for settings in (RaySettings(), RaySettings(workers=here), RaySettings(workers=2 * here, cpus_per_worker=0.5)):
        check_workers(None, settings)
    with pytest.raises(ConfigError, match=rf"this machine has {here}; write {here} or fewer"):
        check_workers(None, RaySettings(workers=here + 1))
    check_workers("ray://head:10001", RaySettings(workers=here + 1))  # a cluster may grow


def test_a_start_that_failed_is_in_nobodys_way(tmp_path: Path) -> None:
    """A teacher that cannot be fitted is found when the run directory is there already."""
    own_data(tmp_path)
    out = tmp_path / "run"
    command = ["run", tmp_path / "own.yaml", "--out", out, "--set", "backend=local"]
    wrong = ["--set", "teachers=[{name: sklearn.svm.SVC, params: {C: -1}}]"]
    ended = in_process(*command, *wrong)
    assert ended.returncode == 2
    assert "teachers.0" in ended.stderr
    assert not out.exists()
    assert in_process(*command).returncode == 0
    assert RunFiles(out).labels_file.exists()
    assert "is not empty" in in_process(*command, *wrong).stderr  # what is paid for stays
    assert RunFiles(out).labels_file.exists()
