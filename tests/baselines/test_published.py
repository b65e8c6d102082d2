"""What a baseline publishes: every field by name, and nothing that tells how many private records there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from pate.baselines._run import run_baseline
from pate.config import BaselineConfig, parse_config
from pate.runs._console import Quiet

METHODS: dict[str, dict[str, Any]] = {
    "dp_erm": {"baseline": {"name": "dp_erm"}, "budget": {"epsilon": 3}},
    "dp_sgd": {
        "baseline": {"name": "dp_sgd", "params": {"model": "linear", "lot_size": 20, "epochs": 1, "accountant": "rdp"}},
        "budget": {"epsilon": 3, "delta": 1e-5},
    },
}


class Noting(Quiet):
    """Keeps what is said to everybody."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def info(self, text: str) -> None:
        self.said.append(text)


class Published(NamedTuple):
    """Report and card, and what was said while they were made."""

    report: dict[str, Any]
    card: dict[str, Any]
    said: list[str]


def published(folder: Path, method: str, usable: int, unusable: int) -> Published:
    """Of a run on so many private records that can be learned from, and so many that cannot."""
    rng = np.random.default_rng(usable)
    y = np.concatenate([rng.integers(0, 2, usable), np.full(unusable, 7)])
    X = rng.normal(size=(usable + unusable, 3)) + y[:, None]
    folder.mkdir()
    np.savez(folder / "data.npz", X_private=X, y_private=y, X_public=np.eye(3), X_test=np.eye(3), y_test=[0, 1, 0])
    content = {"name": "told", "data": {"source": "npz", "file": "data.npz", "classes": ["0", "1"]}, "records": 200}
    console = Noting()
    run_baseline(
        parse_config(content | METHODS[method], BaselineConfig), folder / "run", data_dir=folder, console=console
    )
    read = [json.loads((folder / "run" / name).read_text()) for name in ("report.json", "model/model.json")]
    return Published(*read, [text.replace(str(folder), "") for text in console.said])


def names_in(content: Any, before: str = "") -> set[str]:
    """Every field that holds something, by its path."""
    if not isinstance(content, dict):
        return set() if content in (None, [], {}) else {before}
    return {name for key, value in content.items() for name in names_in(value, f"{before}.{key}".lstrip("."))}


REPORT = {
    *("classes", "config_digest", "data", "kind", "method.name", "name", "pate_version", "schema_version"),
    *(f"privacy.{name}" for name in ("delta", "epsilon", "statement", "unit")),
    *(f"student.{name}" for name in ("accuracy", "balanced_accuracy", "recall", "confusion", "commonest_share")),
    *(f"student.{name}" for name in ("name", "public_predictions", "test_digest", "test_examples")),
    *(f"versions.{name}" for name in ("dp-accounting", "numpy", "python", "ray", "scikit-learn", "scipy", "torch")),
}
CARD = {"baseline", "classes", "delta", "epsilon", "files", "input", "ledger.code", "ledger.link", "n_records", "name"}
CARD |= {"random_state", "range.high", "range.low", "shape"}
COMMON = {"report": REPORT, "card": CARD}
OF_METHOD = {
    "dp_erm": {"report": set(), "card": set()},
    "dp_sgd": {
        "report": {f"planned.{name}" for name in ("sigma", "sampling_rate", "steps")}
        | {f"method.{name}" for name in ("model", "lot_size", "epochs", "accountant")}
        | {"student.auc", "student.calibration.bins", "student.calibration.error"},
        "card": {f"params.{name}" for name in ("model", "lot_size", "epochs", "accountant")} | {"learned.input_shape"},
    },
}


@pytest.mark.parametrize("method", METHODS)
def test_every_published_field_is_known_and_none_tells_how_many_records_there_are(method: str, tmp_path: Path) -> None:
    """Neither how many can be learned from nor how many cannot: all but accuracy is the same for other records."""
    few, many = (
        published(tmp_path / name, method, usable, unusable)
        for name, usable, unusable in (("a", 97, 0), ("b", 142, 11))
    )
    for kind in ("report", "card"):
        for run in (few, many):
            assert names_in(getattr(run, kind)) == COMMON[kind] | OF_METHOD[method][kind]
    for run in (few, many):
        assert run.report.pop("student")["test_examples"] == 3
        run.card["ledger"].pop("code")
    assert few.report == many.report
    assert few.card == many.card
    assert few.said == many.said
    assert few.report["privacy"]["epsilon"] == few.card["epsilon"] <= 3
