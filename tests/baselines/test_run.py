"""`pate baseline` and `pate compare`, from the command line to the files."""

from __future__ import annotations

import json
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import yaml
from support import REPOSITORY
from support.reports import store_run
from typer.testing import CliRunner

from pate.baselines import build_baseline
from pate.baselines._run import run_baseline
from pate.cli import app
from pate.config import BaselineConfig, load_baseline_config, load_config, parse_config
from pate.data._settings import BenchmarkData
from pate.data._sources import load
from pate.errors import ConfigError, PateError, RunError
from pate.report._comparison import compare_runs
from pate.runs._console import Quiet
from pate.runs.model_store import load_model
from pate.runs.run import Run

ERM = {
    "name": "erm",
    "data": {"source": "digits"},
    "baseline": {"name": "dp_erm", "params": {"regularisation": 0.01}},
    "budget": {"epsilon": 50},
    "nonprivate": {"name": "sklearn.naive_bayes.GaussianNB"},
}
SGD = {
    "name": "sgd",
    "data": {"source": "digits"},
    "baseline": {
        "name": "dp_sgd",
        "params": {"model": "linear", "lot_size": 100, "epochs": 3, "learning_rate": 2.0, "accountant": "rdp"},
    },
    "budget": {"epsilon": 4, "delta": 1e-5},
}


def invoke(*arguments: object) -> dict:
    shown = CliRunner().invoke(app, [str(a) for a in arguments] + ["--json"], catch_exceptions=False)
    assert shown.exit_code == 0
    return json.loads(shown.stdout)


def config_file(folder: Path, content: dict) -> Path:
    path = folder / f"{content['name']}.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two seeds of DP-ERM and one DP-SGD on the digits."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, more in ((0, []), (1, ["--set", "nonprivate=null"])):  # which is no part of the method
        invoke("baseline", config_file(folder, ERM), "--set", f"seed={seed}", *more, "--out", folder / f"erm{seed}")
    invoke("baseline", config_file(folder, SGD), "--out", folder / "sgd")
    return {name: folder / name for name in ("erm0", "erm1", "sgd")}


def test_a_run_leaves_a_model_a_report_and_a_page(
    runs: dict[str, Path], published: Callable[[Path], dict[str, str]]
) -> None:
    for name in ("erm0", "sgd"):
        run = runs[name]
        report = json.loads((run / "report.json").read_text())
        assert report["kind"] == "baseline"
        assert report["privacy"]["epsilon"] <= {"erm0": 50, "sgd": 4}[name]
        assert report["student"]["accuracy"] > 0.5
        assert stat.S_IMODE((run / "private").stat().st_mode) == 0o700
        assert "1197" not in published(run)["report.html"] or report["planned"]
        assert "class by class" in published(run)["report.html"]
        assert "Unit of privacy: one record" in published(run)["privacy.txt"]
        card = json.loads((run / "model" / "model.json").read_text())
        assert card["epsilon"] == report["privacy"]["epsilon"]
        model = load_model(run / "model")
        digits, _ = load(BenchmarkData(source="digits"), None, Path())
        shaped = digits.X_test if model.__class__.__name__ == "DPSGDClassifier" else digits.X_test.reshape(200, -1)
        assert (model.predict(shaped) == digits.y_test).mean() == report["student"]["accuracy"]
    with pytest.raises(RunError, match="there is no model"):
        load_model(runs["sgd"])
    assert json.loads((runs["sgd"] / "report.json").read_text())["planned"]["steps"] == 36


def test_a_finished_run_is_not_trained_again(runs: dict[str, Path]) -> None:
    before = (runs["erm0"] / "model" / "model.safetensors").read_bytes()
    config = load_baseline_config(runs["erm0"] / "config.yaml")
    run_baseline(config, runs["erm0"], resume=True)
    assert (runs["erm0"] / "model" / "model.safetensors").read_bytes() == before
    with pytest.raises(RunError, match="not empty"):
        run_baseline(config, runs["erm0"])


def test_a_curve_ends_at_what_the_report_says_and_is_for_benchmarks(tmp_path: Path) -> None:
    """Shares right among the records that were trained on, and among all other examples, public and test."""
    config = load_baseline_config(config_file(tmp_path, SGD), ["baseline.params.epochs=0.5"])
    found = run_baseline(config, tmp_path / "run", curve=True).report
    *_, (step, shares) = found.benchmark.curve
    assert step == found.planned["steps"] == 6
    public, test = found.benchmark.public_examples, found.student.test_examples
    right = found.benchmark.public_accuracy * public + found.student.accuracy * test
    assert shares["test"] == pytest.approx(right / (public + test))
    _, private = load(BenchmarkData(source="digits"), None, Path())
    model = load_model(tmp_path / "run" / "model")
    assert shares["training"] == pytest.approx((model.predict(private.X) == private.y).mean())
    told = parse_config(private_table(tmp_path) | {"records": 250}, BaselineConfig)
    with pytest.raises(ConfigError, match="accuracies on private records are private"):
        run_baseline(told, tmp_path / "told", data_dir=tmp_path, curve=True)


def test_other_figures_of_the_same_model_are_reported_where_they_are_wanted_later(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(runs["erm1"], out)
    before = json.loads((out / "report.json").read_text())
    config = load_baseline_config(out / "config.yaml", ["nonprivate={name: sklearn.naive_bayes.GaussianNB}"])
    found = run_baseline(config, out, resume=True).report
    assert before["benchmark"]["nonprivate_accuracy"] is None
    assert found.benchmark.nonprivate_accuracy > 0.7
    assert found.config_digest == config.digest() != before["config_digest"]
    assert found.student.model_dump(mode="json") == before["student"]
    assert (out / "model" / "model.safetensors").read_bytes() == (
        runs["erm1"] / "model" / "model.safetensors"
    ).read_bytes()


def test_compare_puts_seeds_together_and_says_which_epsilon(runs: dict[str, Path], tmp_path: Path) -> None:
    shown = invoke("compare", *runs.values(), "--out", tmp_path / "c")
    assert [(entry["method"], entry["runs"]) for entry in shown["entries"]] == [("dp_erm", 2), ("DP linear probe", 1)]
    assert {entry["epsilon_kind"] for entry in shown["entries"]} == {"worst case"}
    assert shown["entries"][0]["deviation"] is not None
    assert shown["comparable"] is False  # δ differs
    assert any("δ differs" in note for note in shown["notes"])
    assert shown["nonprivate"] > 0.7
    page = (tmp_path / "c" / "comparison.html").read_text()
    assert "worst case" in page
    assert (tmp_path / "c" / "comparison.png").read_bytes().startswith(b"\x89PNG")
    plain = CliRunner().invoke(app, ["compare", *map(str, runs.values()), "--out", str(tmp_path / "d")])
    assert "without privacy (benchmark)" in plain.stdout
    assert "±" in plain.stdout


def imitate(folder: Path, **student: object) -> Path:
    """A PATE run's report, with the fields that compare reads."""
    return store_run(folder, classes=[str(i) for i in range(10)], student=student)


def test_unlike_epsilons_are_never_ranked_without_saying_so(runs: dict[str, Path], tmp_path: Path) -> None:
    pate_run = imitate(tmp_path / "pate")
    compared = compare_runs([pate_run, runs["sgd"]])
    assert [entry.epsilon_kind for entry in compared.entries] == ["worst case", "worst case", "sanitised"]
    assert any("unlike kinds" in note for note in compared.notes)
    assert any("only their number was compared" in note for note in compared.notes)
    with_private = compare_runs([pate_run, runs["sgd"]], with_private=True)
    assert [entry.epsilon for entry in with_private.entries if entry.epsilon_kind == "data-dependent"] == [0.7]
    assert any("do not publish" in note for note in with_private.notes)


def test_runs_on_other_tests_are_not_compared(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(RunError, match="tested on other examples"):
        compare_runs([runs["sgd"], imitate(tmp_path / "a", test_digest="x" * 16)])
    with pytest.raises(RunError, match="tested on other examples"):
        compare_runs([runs["sgd"], imitate(tmp_path / "b", test_examples=7)])
    with pytest.raises(RunError, match="not measured"):
        compare_runs([imitate(tmp_path / "c", accuracy=None)])
    with pytest.raises(RunError, match=r"has no report\.json"):
        compare_runs([tmp_path])


def private_table(folder: Path) -> dict:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    X = rng.normal(size=(300, 3)) + y[:, None]
    np.savez(folder / "data.npz", X_private=X, y_private=y, X_public=X[:5], X_test=X[:50], y_test=y[:50])
    return ERM | {"data": {"source": "npz", "file": "data.npz", "classes": ["0", "1"]}, "nonprivate": None}


def test_on_private_data_the_count_must_be_a_public_figure(tmp_path: Path) -> None:
    content = private_table(tmp_path)
    with pytest.raises(ConfigError, match="records: missing"):
        run_baseline(parse_config(content, BaselineConfig), tmp_path / "r", data_dir=tmp_path)
    outcome = run_baseline(parse_config(content | {"records": 250}, BaselineConfig), tmp_path / "r", data_dir=tmp_path)
    assert outcome.report.benchmark is None
    assert outcome.report.privacy.statement.startswith("Adding or removing one record")
    assert "300" not in (tmp_path / "r" / "report.json").read_text()


def test_weights_that_diverge_are_charged_told_in_one_line_and_not_published(tmp_path: Path) -> None:
    params = {"model": "mlp", "lot_size": 50, "epochs": 4, "optimiser": "adam", "learning_rate": 3e37}
    wild = {"baseline": {"name": "dp_sgd", "params": params | {"accountant": "rdp"}}, "records": 300}
    content = private_table(tmp_path) | wild | {"budget": {"epsilon": 9, "delta": 1e-5}}
    config, out = parse_config(content, BaselineConfig), tmp_path / "run"
    released = set()
    for resume in (False, True, True):
        with pytest.raises(RunError, match=r"diverged.*ε = \S+ is charged.*lower learning rate"):
            run_baseline(config, out, data_dir=tmp_path, resume=resume)
        released.add((out / "private" / "released.safetensors").read_bytes())
        with closing(sqlite3.connect(out / "ledger.db")) as ledger:
            assert ledger.execute("SELECT COUNT(*) FROM charges").fetchone() == (1,)
        assert not (out / "model").exists()
        assert not (out / "report.json").exists()
    assert len(released) == 1


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("dp_erm", {}),
        ("dp_erm_tuned", {"candidates": [{"regularisation": 0.1}, {"regularisation": 0.01}]}),
        ("dp_sgd", {"model": "linear", "lot_size": 10, "epochs": 2, "accountant": "rdp"}),
    ],
)
@pytest.mark.parametrize("rows", ["", "nan,1,a\n,,b\nword,2,a\n1e39,0,b\n1,1,z\n0,0,\n", "none"])
def test_no_private_record_stops_a_baseline(tmp_path: Path, name: str, params: dict, rows: str) -> None:
    """Missing, no number, too large for a float, a label that is no class; and no record at all."""
    usual = "" if rows == "none" else "".join(f"{i % 7},{i % 3},{'ab'[i % 2]}\n" for i in range(30)) + rows
    (tmp_path / "private.csv").write_text("p,q,y\n" + usual)
    (tmp_path / "public.csv").write_text("p,q\n1,2\n3,4\n")
    (tmp_path / "test.csv").write_text("p,q,y\n1,2,a\n3,4,b\n")
    data = {"source": "csv", "private": "private.csv", "public": "public.csv", "test": "test.csv", "label": "y"}
    content = {
        "name": "never",
        "data": data | {"classes": ["a", "b"]},
        "records": 30,
        "baseline": {"name": name, "params": params},
        "budget": {"epsilon": 3, "delta": 1e-5} if name == "dp_sgd" else {"epsilon": 3},
    }
    outcome = run_baseline(BaselineConfig.model_validate(content), tmp_path / "run", data_dir=tmp_path)
    assert outcome.report.privacy.epsilon <= 3
    assert outcome.report.student.accuracy is not None


def test_columns_that_a_baseline_does_not_use_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("private", "public", "test"):
        (tmp_path / f"{name}.csv").write_text(
            "p,note,y\n" + "".join(f"{i % 7},said {i},{'ab'[i % 2]}\n" for i in range(30))
        )
    data = {"source": "csv", "private": "private.csv", "public": "public.csv", "test": "test.csv", "label": "y"}
    content = {
        "name": "noted",
        "data": data | {"classes": ["a", "b"], "ignore": ["note"]},
        "records": 30,
        "baseline": {"name": "dp_erm", "params": {}},
        "budget": {"epsilon": 3},
    }
    said: list[str] = []

    class AtTerminal(Quiet):
        def info_private(self, text: str) -> None:
            said.append(text)

    parsed = BaselineConfig.model_validate(content)
    run_baseline(parsed, tmp_path / "run", data_dir=tmp_path, console=AtTerminal())
    assert any("not used: 'note' (data.ignore)" in text for text in said)
    run_baseline(parsed, tmp_path / "piped", data_dir=tmp_path)
    assert "not used" not in capsys.readouterr().err  # names of private columns


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("budget.epsilon=0", "budget.epsilon = 0"),
        ("budget.epsilon=-1", "budget.epsilon = -1"),
        ("budget.delta=1", "budget.delta = 1"),
        ("budget.max_queries=3", "budget.max_queries: unknown key"),
        ("baseline.nam=x", "did you mean 'name'"),
        ("baseline.name=dp_sdg", "did you mean 'dp_sgd'"),
        ("baseline.name=sklearn.svm.NoSuch", "has no NoSuch"),
        ("baseline.params.lot_sise=3", "did you mean 'lot_size'"),
        ("baseline.params.epsilon=3", "goes under budget"),
        ("baseline.params.entropy=3", "set by the run"),
        ("baseline.params.lot_size=5000", "larger than the data set"),
        ("baseline.params.sigma=0.3", "would fit"),
        ("mechanism.name=gnmax", "for `pate run`"),
        ("data.source=digit", "did you mean 'digits'"),
    ],
)
def test_mistakes_are_one_clear_line(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(PateError, match=words):
        run_baseline(load_baseline_config(config_file(tmp_path, SGD), [override]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_baseline_config_is_not_for_pate_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="for `pate baseline`"):
        load_config(config_file(tmp_path, ERM))


def test_a_large_delta_is_said_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ["budget.delta=0.01", "budget.allow_large_delta=true", "baseline.params.sigma=5"]
    run_baseline(load_baseline_config(config_file(tmp_path, SGD), overrides), tmp_path / "run")
    assert "WARNING: delta = 0.01 is at least 1/n_records" in capsys.readouterr().err


def test_ones_own_baseline_by_dotted_path() -> None:
    given = {"epsilon": 1.0, "delta": 1e-5, "n_records": 10, "classes": range(2), "random_state": 0}
    own = build_baseline("pate.baselines.dp_erm.DPLinearClassifier", {"loss": "huber"}, given)
    assert own.loss == "huber"


def test_a_baseline_is_made_of_what_is_beside_its_own_config(tmp_path: Path) -> None:
    source = "from pate.baselines.dp_erm import DPLinearClassifier\nclass Own(DPLinearClassifier):\n    whose = {!r}\n"
    source += "    def learned(self):\n        return {{'whose': self.whose}}\n"
    named = {"records": 300, "baseline": {"name": "beside_two_baselines.Own"}}
    config = parse_config(private_table(tmp_path) | named, BaselineConfig)
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "beside_two_baselines.py").write_text(source.format(name))
    for number, name in enumerate("aba"):
        out = tmp_path / f"run{number}"
        run_baseline(config, out, data_dir=tmp_path, config_dir=tmp_path / name)
        assert json.loads((out / "model" / "model.json").read_text())["learned"] == {"whose": name}
        with Run.load(out) as run:
            assert run.model().whose == name


@pytest.mark.slow
def test_the_cifar10_config_runs_on_generated_images(tmp_path: Path) -> None:
    """Thirty random images a batch file, in CIFAR-10's own layout; two small lots."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        n = 9030 if name.startswith("test") else 30
        records = rng.integers(0, 256, size=(n, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(folder / name)
    short = ["baseline.params.lot_size=15", "baseline.params.epochs=0.2", "baseline.params.model_params.channels=2"]
    short.append("baseline.params.accountant=rdp")
    config = load_baseline_config(REPOSITORY / "configs" / "cifar10_dp_sgd.yaml", short)
    outcome = run_baseline(config, tmp_path / "run", data_dir=tmp_path)
    assert outcome.report.student.test_examples == 30
    assert outcome.report.privacy.epsilon <= 3


def test_adult_by_its_config(real_data: Path, tmp_path: Path) -> None:
    """Real data: objective perturbation at ε = 1 within three points of no privacy (83.7 against 84.5 when written)."""
    if not (real_data / "adult").is_dir():
        pytest.skip("no Adult data below the data folder")
    config = load_baseline_config(REPOSITORY / "configs" / "adult_dp_erm.yaml")
    report = run_baseline(config, tmp_path / "run", data_dir=real_data).report
    assert report.student.test_examples == 6281
    assert report.student.accuracy > 0.81
    assert report.benchmark.nonprivate_accuracy > 0.84
