"""pate predict: what it prints, and one clear line for each mistake. That it needs no Ray: test_cli.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command_line import in_process
from typer.testing import CliRunner

from pate.cli import app
from pate.errors import PateError
from pate.runs.model_store import save_model
from pate.students import build_student

CARD: dict[str, Any] = {
    "classes": ["cat", "dog", "owl"],
    "input": "images of 8×8 pixels, each divided by 16",
    "shape": [8, 8],
    "epsilon": 1.5,
    "delta": 1e-5,
    "mechanism": {"name": "lnmax", "scale": 20},
}


def examples(n: int = 30) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(n) % 3
    X = np.random.default_rng(0).random((n, 8, 8)).astype(np.float32)
    X[np.arange(n), y] += 2
    return X, y


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pate predict` needs of a run: its student."""
    X, y = examples()
    folder = tmp_path_factory.mktemp("run")
    student = build_student("mixmatch", {"steps": 60, "channels": 4, "hidden": 32, "ema": 0.9}, 0).fit(X, y)
    save_model(student, folder / "student", CARD)
    np.savez(folder / "good.npz", X=X)
    return folder


def predict(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["predict", *map(str, arguments)])


def test_prints_a_class_a_line(run: Path) -> None:
    shown = predict(run, "--input", run / "good.npz")
    assert shown.exit_code == 0, shown.output
    right = np.array(shown.stdout.split()) == np.array(CARD["classes"])[examples()[1]]
    assert right.mean() > 0.8


def test_json_carries_the_privacy_it_cost(run: Path) -> None:
    content = json.loads(predict(run / "student", "--input", run / "good.npz", "--json").stdout)
    assert content["epsilon"] == 1.5
    assert content["mechanism"] == {"name": "lnmax", "scale": 20}
    assert len(content["labels"]) == len(content["probabilities"]) == 30
    assert all(1 / 3 <= p <= 1 for p in content["probabilities"])


def _bad_inputs() -> dict[str, tuple[Any, list[str]]]:
    X, _ = examples(4)
    broken = X.copy()
    broken[2, 0, 0] = np.nan
    return {
        "missing": (None, ["no such file"]),
        "text": (b"not an archive", ["not a .npz or .npy"]),
        "objects": (np.array([{}, {}], dtype=object), ["never unpickled"]),
        "words": (np.array(["a", "b"]), ["not numbers"]),
        "shape": (X[:, :4], ["(4, 4, 8)", "8, 8"]),
        "single": (X[0], ["single example", "(1, 8, 8)"]),
        "empty": (X[:0], ["no examples"]),
        "nan": (broken, ["NaN", "row 2"]),
        "large": (np.full((2, 8, 8), 1e300), ["too large", "row 0"]),
        "pixels": ((X * 16).astype(np.uint8), ["uint8", "divided by 16"]),
        "keys": ({"a": X, "b": X}, ["no array X", "a, b"]),
    }


@pytest.mark.parametrize("case", _bad_inputs())
def test_a_bad_input_is_one_clear_line(case: str, run: Path, tmp_path: Path) -> None:
    content, words = _bad_inputs()[case]
    path = tmp_path / "in.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.savez(path, **(content if isinstance(content, dict) else {"X": content}))
    _refused([run, "--input", path], [str(path), *words])


@pytest.mark.parametrize("damage", ["no run", "no weights", "half the weights", "not JSON"])
def test_a_bad_run_is_one_clear_line(damage: str, run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "student"
    if damage != "no run":
        folder.mkdir()
        for path in (run / "student").iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
    if damage == "no weights":
        (folder / "model.safetensors").unlink()
    if damage == "half the weights":
        (folder / "model.safetensors").write_bytes((run / "student" / "model.safetensors").read_bytes()[:999])
    if damage == "not JSON":
        (folder / "student.json").write_text("{")
    _refused([tmp_path, "--input", run / "good.npz"], [str(folder)])


def _refused(arguments: list[object], words: list[str]) -> None:
    shown = predict(*arguments)
    assert isinstance(shown.exception, PateError), shown.output  # main() prints it as one line, with status 2
    assert "\n" not in str(shown.exception)
    for word in words:
        assert word in str(shown.exception)


def test_status_two_and_nothing_on_standard_output(run: Path) -> None:
    shown = in_process("predict", run, "--input", "nowhere.npz")
    assert shown.returncode == 2
    assert shown.stdout == ""
    assert shown.stderr.splitlines() == ["pate: error: nowhere.npz: no such file"]
