"""`--resume=auto`: the same command begins a run and goes on with it, as often as it is started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import in_process

from pate import pipeline
from pate.baselines._run import run_baseline
from pate.cli._run import _place, new_run
from pate.config import BaselineConfig, Config, parse_config
from pate.errors import BudgetExceeded, RunError
from pate.runs.run import Run, remove_empty_run

CONFIG = {
    "name": "small",
    "n_teachers": 12,
    "data": {"source": "digits"},
    "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
    "mechanism": {"name": "gnmax", "sigma": 3},
    "budget": {"max_queries": 60, "delta": 1e-5},
    "student": {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}},
    "backend": "local",
}

_AT_ONCE = """import sys, time
from pathlib import Path
from pate.config import stored_config
from pate.errors import RunError
from pate.runs.run import Run
place, config, signals = sys.argv[1], stored_config(Path(sys.argv[2])), Path(sys.argv[3])
print("ready", flush=True)
while not (signals / "go").exists():
    pass
try:
    with Run.create(place, config, "auto") as run:
        print("works", run.resumed, flush=True)
        while not (signals / "end").exists():
            time.sleep(0.01)
except RunError as error:
    print(error, flush=True)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(params=["folder", "URL"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "run") if request.param == "folder" else f"file://{tmp_path}/run"


def test_auto_begins_and_goes_on(place: str) -> None:
    config = parse_config(CONFIG)
    found = []
    for _ in range(2):
        with Run.create(place, config, "auto") as run:
            found.append((run.resumed, run.id, run.key))
    assert [resumed for resumed, _, _ in found] == [False, True]
    assert found[0][1:] == found[1][1:]
    assert found[0][2].hex() not in found[0][1]  # what is told of the run is not its key


def test_a_whole_run_by_auto_pays_once(place: str) -> None:
    first = pipeline.run(CONFIG, place, resume="auto", pages=False)
    again = pipeline.run(CONFIG, place, resume="auto", pages=False)
    assert first.report == again.report


def test_auto_goes_on_with_its_own_config_alone(place: str) -> None:
    with Run.create(place, parse_config(CONFIG), "auto"):
        pass
    other = parse_config(CONFIG | {"n_teachers": 13})
    with pytest.raises(RunError, match="belongs to another config"), Run.create(place, other, "auto"):
        pass


def test_auto_leaves_a_folder_alone_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    config = parse_config(CONFIG)
    with pytest.raises(RunError, match="is not a run directory"), Run.create(tmp_path, config, "auto"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_resume_alone_wants_a_run(place: str) -> None:
    with pytest.raises(RunError, match="there is no run to resume"), Run.create(place, parse_config(CONFIG), True):
        pass


def test_of_two_that_begin_at_once_one_works_and_the_other_is_refused(place: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(parse_config(CONFIG).to_yaml())
    command = [sys.executable, "-c", _AT_ONCE, place, str(config), str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    streams = [process.stdout for process in both if process.stdout is not None]
    assert [stream.readline() for stream in streams] == ["ready\n"] * 2
    (tmp_path / "go").touch()
    said = sorted(stream.readline() for stream in streams)
    (tmp_path / "end").touch()
    assert [process.wait(timeout=300) for process in both] == [0, 0]
    for stream in streams:
        stream.close()
    refused, works = said
    assert works == "works False\n"
    assert "at work there" in refused


def test_what_begins_without_a_place_goes_where_its_config_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATE_RUNS", str(tmp_path))
    config = parse_config(CONFIG)
    with pytest.raises(RunError, match="no run of this config"):
        _place(config, True)
    fixed = _place(config, "auto")
    assert _place(config, "auto") == fixed  # two that begin at once meet there
    assert _place(parse_config(CONFIG | {"n_teachers": 13}), "auto") != fixed
    begun = new_run(config.name)
    with Run.create(begun, config):
        pass
    assert _place(config, "auto") == _place(config, True) == begun


def test_a_first_start_that_fails_leaves_nothing_unless_it_is_to_be_resumed(tmp_path: Path) -> None:
    config = parse_config(CONFIG)

    def fails(error: Exception) -> bool:
        begun = Run.create(tmp_path / "run", config, "auto")
        with pytest.raises(type(error)), begun as run, remove_empty_run(run):
            raise error
        return (tmp_path / "run").exists()

    assert not fails(BudgetExceeded("no room"))
    assert fails(RunError("the cluster is gone; go on with {resume}", resume=True))
    assert fails(BudgetExceeded("no room"))  # was there before


@pytest.mark.parametrize("option", ["--resume", "--resume=auto", "--resume auto"])
@pytest.mark.parametrize("command", ["run", "baseline"])
def test_the_option_takes_no_word_but_auto(
    command: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []

    def instead(settings: Config | BaselineConfig, out: object, *, resume: object, **_: object) -> None:
        given.append((settings.name, resume))
        raise RunError("enough")

    monkeypatch.setattr(pipeline, "run", instead)
    monkeypatch.setattr(f"{run_baseline.__module__}.run_baseline", instead)
    path = tmp_path / "config.yaml"
    section = {"baseline": {"name": "dp_erm", "params": {}}, "budget": {"epsilon": 1}} if command == "baseline" else {}
    content = CONFIG if command == "run" else {"name": "small", "data": {"source": "digits"}} | section
    path.write_text(json.dumps(content))
    ended = in_process(command, "--out", tmp_path / "run", *option.split(), path)
    assert "enough" in ended.stderr, ended
    assert given == [("small", "auto" if option.endswith("auto") else True)]


def test_other_values_are_refused(tmp_path: Path) -> None:
    for value in ("perhaps", "yes"):
        ended = in_process("run", f"--resume={value}")
        assert ended.returncode == 2
        assert "write --resume alone, or --resume=auto" in ended.stderr
