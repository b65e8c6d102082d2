"""Public examples of 2022, private records of 2024, a test set of 2023: what is offered, warned about and rehearsed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.command_line import in_process
from support.emergencies import write_emergencies

from pate import pipeline
from pate.config import Config, load_config, parse_config
from pate.data._sources import load
from pate.data.public import PublicData
from pate.preflight._rehearsal import rehearse
from pate.runs._console import Quiet

TEACHERS = {
    "voters": "teachers",
    "neighbours": None,
    "n_teachers": 10,
    "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
    "mechanism": {"name": "gnmax", "sigma": 5},
    "budget": {"max_queries": 300, "delta": 1e-5},
}


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table, and what `pate init` makes of it: `config.yaml`, and `init.txt`, which it said."""
    folder = tmp_path_factory.mktemp("clinic")
    write_emergencies(folder)
    files = [folder / "private.csv", "--public", folder / "public.csv", "--test", folder / "test.csv"]
    shown = in_process("init", *files, "--records", 800, "--target-epsilon", 4, "--out", folder / "config.yaml")
    assert shown.returncode == 0, shown.stderr
    (folder / "init.txt").write_text(shown.stdout)
    return folder


def changed(folder: Path, in_data: dict[str, Any] | None = None, **changes: Any) -> tuple[Config, PublicData]:
    content = yaml.safe_load((folder / "config.yaml").read_text()) | changes
    content["data"] |= in_data or {}
    config = parse_config({key: value for key, value in content.items() if value is not None})
    return config, load(config.data, None, folder, keep_missing=True)[0]


def with_labels(data: PublicData, seed: int) -> PublicData:
    """The test labels of anybody but the row's own."""
    assert data.y_test is not None
    return replace(data, y_test=np.random.default_rng(seed).permutation(data.y_test))


def test_dates_are_offered_as_what_another_year_has_too_and_nothing_is_warned_about(clinic: Path) -> None:
    given = load_config(clinic / "config.yaml").data.model_dump()
    assert given["date_features"] == {
        "born": (),
        "arrived": (
            *("month", "weekday", "hour", "years since born"),
            *("hours since onset", "hours since booked", "hours since called"),
        ),
        **{"onset": (), "booked": (), "called": ()},
    }
    said = (clinic / "init.txt").read_text()
    assert "WARNING" not in said
    assert "note: rehearsal without noise, on labelled rows of the test file alone" in said


def test_a_student_of_another_year_is_far_better_than_chance(clinic: Path, tmp_path: Path) -> None:
    """Its AUC was 0.59 to 0.63 when dates were numbers, and is 0.80 to 0.83; the noise of a run moves it by 0.01."""
    config = load_config(clinic / "config.yaml")
    report = pipeline.run(config, tmp_path / "run", config_dir=clinic, console=Quiet(), pages=False).report
    assert report.student.auc is not None
    assert report.student.auc > 0.7


def test_absolute_dates_are_warned_about_column_by_column(clinic: Path) -> None:
    _, data = changed(clinic, {"date_features": {}})
    assert [line.partition(":")[0] for line in data.warnings] == [
        f"column {name!r}" for name in ("arrived", "onset", "booked", "called")
    ]


@pytest.mark.parametrize("voters", [{}, TEACHERS], ids=["neighbours", "teachers"])
def test_a_rehearsal_tells_what_can_be_told_apart_from_what_cannot(voters: dict[str, Any], clinic: Path) -> None:
    """Labels that say nothing are called chance but in one rehearsal of a hundred, and these are always the same."""
    config, data = changed(clinic, **voters)
    good = rehearse(config, data)
    assert good is not None
    assert good.tells_classes_apart
    assert good.auc > 0.7
    assert (good.source, good.rows) == ("test", 300)
    for seed in range(2):
        bad = rehearse(config, with_labels(data, seed))
        assert bad is not None
        assert not bad.tells_classes_apart
        assert "NO BETTER THAN CHANCE" in str(bad)
        assert str(bad).isprintable()


@pytest.mark.parametrize("voters", [{}, TEACHERS], ids=["neighbours", "teachers"])
def test_a_rehearsal_looks_at_nothing_private(voters: dict[str, Any], clinic: Path, tmp_path: Path) -> None:
    """Seven other private records, of which nothing can be read, change nothing."""
    for name in ("config.yaml", "public.csv", "test.csv"):
        os.link(clinic / name, tmp_path / name)
    header = (clinic / "private.csv").read_text().splitlines()[0]
    (tmp_path / "private.csv").write_text(f"{header}\n" + ("?" + ",?" * header.count(",") + "\n") * 7)
    found = rehearse(*changed(clinic, **voters))
    assert found is not None
    assert found == rehearse(*changed(tmp_path, **voters))


def test_labelled_public_examples_do_as_well_as_a_test_file(clinic: Path) -> None:
    config, data = changed(clinic)
    swapped = replace(data, X_public=data.X_test, y_public=data.y_test, X_test=None, y_test=None)  # type: ignore[arg-type]
    found = rehearse(config, swapped)
    assert found is not None
    assert found.source == "public"
    assert found.tells_classes_apart


def test_there_is_none_without_enough_labels_nor_of_a_benchmark(clinic: Path) -> None:
    config, data = changed(clinic)
    assert data.X_test is not None
    assert data.y_test is not None
    few = replace(data, X_test=data.X_test[:12], y_test=data.y_test[:12])
    alike = replace(data, y_test=0 * data.y_test)
    for less in (replace(data, y_test=None), few, alike, replace(data, benchmark=True)):
        assert rehearse(config, less) is None


def test_a_run_says_so_before_anything_is_spent(clinic: Path, tmp_path: Path) -> None:
    rows = (clinic / "test.csv").read_text().splitlines()
    labels = np.random.default_rng(1).permutation([row.rpartition(",")[2] for row in rows[1:]])
    for name in ("private.csv", "public.csv"):
        os.link(clinic / name, tmp_path / name)
    shuffled = [f"{row.rpartition(',')[0]},{label}" for row, label in zip(rows[1:], labels, strict=True)]
    (tmp_path / "test.csv").write_text("\n".join([rows[0], *shuffled]) + "\n")
    (tmp_path / "config.yaml").write_text((clinic / "config.yaml").read_text())
    shown = in_process("run", tmp_path / "config.yaml", "--out", tmp_path / "run", "--set", "data.date_features={}")
    assert shown.returncode == 0
    lines = shown.stderr.splitlines()
    loud = [number for number, line in enumerate(lines) if line.startswith("WARNING: ")]
    begun = next(number for number, line in enumerate(lines) if line.startswith("round 1"))
    assert len(loud) == 5
    assert max(loud) < begun
    assert "column 'arrived': 100 % of the test file lies beyond" in lines[loud[0]]
    assert "NO BETTER THAN CHANCE (0.50)" in lines[loud[-1]]
