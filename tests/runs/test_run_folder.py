"""A run directory belongs to one config, one process at a time, and its owner."""

from __future__ import annotations

from pathlib import Path

import pytest

from pate.config import Config, parse_config
from pate.errors import RunError
from pate.runs.run import Run


def config(**changes: object) -> Config:
    content = {
        "n_teachers": 20,
        "data": {"source": "digits"},
        "teachers": [{"name": "sklearn.svm.SVC"}],
        "mechanism": {"name": "gnmax", "sigma": 5},
        "student": {"name": "supervised"},
    }
    return parse_config(content | changes)


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    with (
        Run.create(tmp_path / "run", config()),
        pytest.raises(RunError, match="another pate is at work there"),
        Run.create(tmp_path / "run", config(), resume=True),
    ):
        pass
    with Run.create(tmp_path / "run", config(), resume=True):
        pass


@pytest.mark.parametrize(
    "changes", [{"mechanism": {"name": "gnmax", "sigma": 1}}, {"n_teachers": 10}, {"budget": {"max_queries": 5000}}]
)
def test_another_config_does_not_go_on_with_it(changes: dict[str, object], tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", config()):
        pass
    with (
        pytest.raises(RunError, match="belongs to another config"),
        Run.create(tmp_path / "run", config(**changes), resume=True),
    ):
        pass


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for resume in (True, False):
        with pytest.raises(RunError), Run.create(tmp_path, config(), resume=resume):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("mode", [0o750, 0o705])
def test_a_private_folder_that_others_can_enter_is_refused(mode: int, tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", config()) as run:
        assert run.private.stat().st_mode & 0o077 == 0
    (tmp_path / "run" / "private").chmod(mode)
    with pytest.raises(RunError, match="others can read it"), Run.create(tmp_path / "run", config(), resume=True):
        pass


def test_what_a_run_began_with_is_remembered(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", config()) as run:
        assert run.same_as_before("digest", "one")
    with Run.create(tmp_path / "run", config(), resume=True) as run:
        assert run.same_as_before("digest", "one")
        assert not run.same_as_before("digest", "two")
        assert run.same_as_before("digest", "one")
        run.replace("digest", "two")
        assert run.same_as_before("digest", "two")
