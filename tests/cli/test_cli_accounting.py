"""pate account and pate plan, as programs and people use them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from pate.cli import app
from pate.errors import PateError


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    app([str(argument) for argument in arguments], standalone_mode=False)
    return capsys.readouterr().out


def account(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    return json.loads(call(capsys, "account", *map(str, arguments), "--json"))


CONFIDENT = ["--mechanism", "confident-gnmax", "--sigma2", 40]
TABLE = [
    ("mnist", 100, 1e-5, ["--mechanism", "lnmax", "--scale", 20], 2.043, 0.554, 0.531),
    ("svhn", 500, 1e-6, ["--mechanism", "lnmax", "--scale", 10], 5.041, 2.126, 2.118),
    ("svhn", 1000, 1e-6, ["--mechanism", "lnmax", "--scale", 10], 8.192, 3.065, 3.129),
    ("mnist", 640, 1e-5, [*CONFIDENT, "--threshold", 200, "--sigma1", 150], 2.00, 0.92, 0.931),
]


@pytest.mark.parametrize(("data", "queries", "delta", "options", "published", "rdp", "pld"), TABLE)
def test_the_papers_table_and_ours(
    votes: Path,
    capsys: pytest.CaptureFixture[str],
    data: str,
    queries: int,
    delta: float,
    options: list,
    published: float,
    rdp: float,
    pld: float,
) -> None:
    shown = account(capsys, votes / f"{data}_250_teachers.npy", "--queries", queries, "--delta", delta, *options)
    assert set(shown) == {"queries", "answered", "delta", "epsilon"}
    epsilon = shown["epsilon"]
    assert epsilon["published_bound"] == pytest.approx(published, abs=0.01 if "--sigma2" in options else 0.002)
    assert epsilon["exact_rdp"] == pytest.approx(rdp, rel=0.005)
    assert epsilon["exact_pld"] == pytest.approx(pld, rel=0.005)
    assert epsilon["data_independent"] > epsilon["exact_rdp"]
    if "--sigma2" in options:
        assert shown["answered"] == pytest.approx(283.5, abs=0.1)


@pytest.fixture
def small_votes(tmp_path: Path) -> Path:
    path = tmp_path / "votes.npy"
    np.save(path, np.array([[90, 5, 5], [50, 45, 5], [100, 0, 0], [40, 30, 30]]))
    return path


def test_table_for_people_marks_what_is_private(small_votes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = call(capsys, "account", small_votes, "--mechanism", "gnmax", "--sigma", "20", "--delta", "1e-5")
    lines = shown.splitlines()
    for name in ("published bound", "exact, RDP", "exact, PLD", "answered on average"):
        line = next(line for line in lines if name in line)
        assert "private: do not publish" in line
    public = next(line for line in lines if "for every data set" in line)
    assert "private" not in public


def test_impossible_figures_are_null(small_votes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tied = small_votes.with_name("tied.npy")
    np.save(tied, np.array([[50, 50, 0], [56, 44, 0]]))
    options = ["--mechanism", "mstab", "--epsilon", 2, "--query-delta", 1e-7, "--delta", 1e-5]
    epsilon = account(capsys, tied, *options)["epsilon"]
    assert epsilon["exact_rdp"] is None  # one vote can change the answer
    assert 0 < epsilon["exact_pld"] <= epsilon["data_independent"] <= 4
    options = ["--epsilon", 2, "--unstable", 2, "--max-queries", 10, "--delta", 1e-5]
    shown = account(capsys, small_votes, "--mechanism", "lecture-msvec", *options)
    lecture = shown["epsilon"].pop("data_independent")
    assert 0.1 < lecture < 0.5, "the lecture's noise costs far less than it says"
    assert shown["epsilon"] == {"published_bound": 2.0, "exact_rdp": None, "exact_pld": None}
    assert 0 <= shown["answered"] < 0.1
    shown = account(capsys, small_votes, "--mechanism", "msvec", *options)
    assert 1 < shown["epsilon"].pop("data_independent") < 2, "four queries cost less than ten"
    assert shown["epsilon"] == {"published_bound": None, "exact_rdp": None, "exact_pld": None}


def test_plot_is_drawn(small_votes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("curve.png", "curve.svg"):
        options = ["--mechanism", "lnmax", "--scale", "10", "--delta", "1e-5", "--plot", tmp_path / name]
        call(capsys, "account", small_votes, *options)
        assert (tmp_path / name).stat().st_size > 5000


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array([[3, -1]]), "negative"),
        (np.array([[1.5, 0.5]]), "not whole"),
        (np.array([[2, 1], [2, 2]]), "row 1 has another number of votes"),
        (np.array([[np.nan, 1.0]]), "NaN"),
        (np.array([1, 2, 3]), "shape"),
        (np.zeros((2, 2, 2)), "shape"),
        (np.zeros((0, 3)), "no queries"),
        (np.array([["a", "b"]]), "not counts"),
        (np.array([[{}, 1]], dtype=object), "plain numbers"),
    ],
)
def test_a_bad_votes_file_is_one_clear_line(array: np.ndarray, words: str, tmp_path: Path) -> None:
    path = tmp_path / "votes.npy"
    np.save(path, array, allow_pickle=True)
    with pytest.raises(PateError, match=words) as caught:
        app(["account", str(path), "--mechanism", "lnmax", "--scale", "5", "--delta", "1e-5"], standalone_mode=False)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_files_that_are_no_arrays_are_refused(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "trapped",))

    (tmp_path / "pickle.npy").write_bytes(pickle.dumps(Trap()))
    (tmp_path / "empty.npy").write_bytes(b"")
    np.savez(tmp_path / "archive.npz", a=np.ones((2, 2)))
    for name in ("pickle.npy", "empty.npy", "archive.npz", "missing.npy"):
        with pytest.raises(PateError, match=name):
            app(["account", str(tmp_path / name), "--mechanism", "lnmax", "--delta", "1e-5"], standalone_mode=False)
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--delta", "1e-5"], "--mechanism"),
        (["--mechanism", "lnmax", "--delta", "1e-5"], "--scale: missing"),
        (["--mechanism", "lnmax", "--scale", "0", "--delta", "1e-5"], "noise scale"),
        (["--mechanism", "lnmax", "--scale", "5", "--delta", "0"], "delta"),
        (["--mechanism", "lnmax", "--scale", "5", "--delta", "1e-5", "--queries", "9"], "only 4 rows"),
        (["--mechanism", "lnmax", "--scale", "5", "--delta", "1e-5", "--queries", "0"], "at least 1"),
        (["--mechanism", "lnmx", "--scale", "5", "--delta", "1e-5"], "did you mean 'lnmax'"),
        (["--mechanism", "lnmax", "--sigma", "5", "--delta", "1e-5"], "--sigma: lnmax has no such parameter"),
    ],
)
def test_wrong_options_are_one_clear_line(options: list[str], words: str, small_votes: Path) -> None:
    with pytest.raises(PateError, match=words):
        app(["account", str(small_votes), *options], standalone_mode=False)


def plan(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    return json.loads(call(capsys, "plan", *map(str, arguments), "--json"))


@pytest.mark.parametrize(
    ("options", "free"),
    [
        (["--mechanism", "lnmax"], "scale"),
        (["--mechanism", "gnmax"], "sigma"),
        (["--mechanism", "confident-gnmax", "--threshold", 60, "--sigma1", 60, "--max-answers", 50], "sigma2"),
        (["--mechanism", "mstab", "--query-delta", 1e-8], "epsilon"),
    ],
)
def test_plan_finds_the_least_noise_for_a_target(options: list, free: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = plan(capsys, *options, "--target-epsilon", 3, "--max-queries", 100)
    assert 2.9 < shown["epsilon"] <= 3
    assert 0 < shown["one_more_query"] < 0.2
    again = plan(capsys, *options, f"--{free}", shown["mechanism"][free], "--max-queries", 100)
    assert again["epsilon"] == pytest.approx(shown["epsilon"])


def test_plan_says_what_can_ever_be_answered(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--mechanism", "msvec", "--epsilon", 1, "--unstable", 10, "--max-queries", 1000]
    shown = plan(capsys, *options, "--teachers", 250)
    assert shown["unanimous"]["probability"] < 0.02
    assert 440 < shown["unanimous"]["teachers_for_half"] < 460
    assert 0.98 < shown["epsilon"] <= 1
    assert shown["one_more_query"] is None
    assert shown["epsilon_by_method"]["Rényi, most queries alone"] > 1.5 > shown["epsilon"]
    assert "threshold" in shown["note"]
    shown = plan(capsys, "--mechanism", "lecture-msvec", *options[2:], "--teachers", 250)
    assert 4700 < shown["unanimous"]["teachers_for_half"] < 4900
    assert shown["epsilon"] < 0.315 < shown["epsilon_by_method"]["simple composition"] < 1
    options = [
        "--mechanism",
        "msamp",
        "--epsilon",
        1,
        "--query-delta",
        1e-7,
        "--sampling-rate",
        0.05,
        "--max-queries",
        5,
    ]
    shown = plan(capsys, *options, "--teachers", 250)
    assert shown["unanimous"]["probability"] < 0.01
    assert shown["unanimous"]["teachers_for_half"] is None


def test_plan_expects_answers_for_votes_and_for_assumed_gaps(
    small_votes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--mechanism", "confident-gnmax", "--threshold", 60, "--sigma1", 5, "--sigma2", 5, "--max-queries", 40]
    shown = plan(capsys, *options, "--votes", small_votes)
    assert shown["expected_is_private"]
    assert shown["expected"]["answered"] == pytest.approx(20, abs=2)  # two of four histograms are above 60
    assert shown["expected"]["plurality_share"] > 0.99
    shown = plan(capsys, *options, "--gaps", "90:0.75,0:0.25", "--teachers", 100)
    assert not shown["expected_is_private"]
    assert shown["expected"]["answered"] == pytest.approx(30, abs=1)


def test_plan_of_a_config_gives_epsilon_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    from pate.config import default_config_path

    shown = plan(capsys, default_config_path())
    assert 4 < shown["epsilon"] < 5
    assert 0 < shown["seconds_of_training"] < 3600
    assert 0 < shown["seconds_of_student"] < 3600
    assert shown["unanimous"]["n_teachers"] == 80


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--mechanism", "msvec", "--target-epsilon", "1"], "nothing to solve"),
        (["--mechanism", "gnmax", "--target-epsilon", "-1"], "above 0"),
        (["--mechanism", "gnmax", "--sigma", "5", "--gaps", "3:1"], "--teachers"),
        (["--mechanism", "gnmax", "--sigma", "5", "--gaps", "x", "--teachers", "5"], "lead:share"),
        (["--mechanism", "gnmax", "--sigma", "5", "--gaps", "9:1", "--teachers", "5"], "between 0 and"),
        (["--mechanism", "gnmax", "--sigma", "5", "--max-queries", "9", "--classes", "0"], "at least 2"),
        ([], "--mechanism"),
    ],
)
def test_wrong_plans_are_one_clear_line(options: list[str], words: str) -> None:
    with pytest.raises(PateError, match=words):
        app(["plan", *options], standalone_mode=False)
