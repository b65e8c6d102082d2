"""What crosses the boundary when something goes wrong inside, and that nothing is told that need not be."""

from __future__ import annotations

import io
import pickle
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import BaseEstimator

from pate import cli, pipeline
from pate.boundary._aggregator import Aggregator
from pate.boundary._guard import Failed, error_kind, guarded, guarded_class, silenced
from pate.config import BaselineConfig, Config, parse_config
from pate.data.private import Records
from pate.data.public import PublicData
from pate.errors import ConfigError, DataError, PateError, RunError
from pate.ledger import Ledger, Limits
from pate.mechanisms import GNMax, Histogram
from pate.runs._console import Console
from pate.runs.run import Run
from pate.teachers import Recipe
from pate.voters.neighbours._cells import Cells, CellVote, Space
from pate.voters.neighbours._rounds import LocalVoteCounter
from pate.voters.stored import StoredCount
from pate.voters.teachers import _check_part_sizes
from pate.voters.teachers._worker import Teaching, TrainingJob, Worker

SECRET = "canary 0.8675309"
KEY = b"q" * 32


def shown(error: BaseException) -> str:
    """All that a traceback, a log or Ray would show of an error, and whatever else hangs on it."""
    text, left = "".join(traceback.format_exception(error)) + repr(pickle.dumps(error)), [error]
    while left:
        one = left.pop()
        text += repr(one) + repr(vars(one)) + "".join(getattr(one, "__notes__", ()))
        left += [beside for beside in (one.__cause__, one.__context__) if beside is not None]
    return text


def raise_(error: Exception) -> None:
    raise error


def wraps_another() -> None:
    try:
        raise_(KeyError(SECRET))
    except KeyError as error:
        raise ConnectionError(f"because of {error}") from error


@pytest.mark.parametrize(
    ("failing", "kind"),
    [
        (lambda: raise_(ValueError(SECRET)), "ValueError"),
        (lambda: raise_(DataError(SECRET)), "DataError"),  # only our own lines may word an error for users
        (lambda: raise_(OSError(28, SECRET, SECRET)), "OSError: No space left on device"),
        (lambda: raise_(OSError(SECRET)), "OSError"),
        (lambda: {}[SECRET], "KeyError"),
        (wraps_another, "ConnectionError"),
    ],
)
def test_an_error_crosses_by_its_kind(failing: Callable[[], object], kind: str) -> None:
    with pytest.raises(Failed) as caught:
        guarded("it", then="; go on")(failing)()
    assert str(caught.value) == f"it failed ({kind}); go on"
    assert SECRET not in shown(caught.value)
    assert caught.value.__context__ is caught.value.__cause__ is None


def test_our_own_words_cross_without_what_caused_them() -> None:
    def ours() -> None:
        try:
            raise_(ValueError(SECRET))
        except ValueError:
            parse_config({"baseline": 1})

    with pytest.raises(ConfigError, match="pate baseline") as caught:
        guarded("it")(ours)()
    assert SECRET not in shown(caught.value)


class Reads:
    def read(self) -> None:
        raise_(ValueError(SECRET))


@guarded_class("a reader")
class Inherits(Reads):
    """As an actor would be made of a plain class."""


def test_inherited_methods_are_guarded_too() -> None:
    with pytest.raises(Failed, match=r"a reader failed \(ValueError\)"):
        Inherits().read()
    with pytest.raises(ValueError, match="canary"):
        Reads().read()


def test_streams_that_are_no_files_are_silenced_too() -> None:
    """As in a notebook."""
    for redirect, name in ((redirect_stdout, "stdout"), (redirect_stderr, "stderr")):
        with redirect(io.StringIO()) as shown:
            with silenced():
                getattr(sys, name).write(SECRET)
            getattr(sys, name).write("after")
        assert shown.getvalue() == "after"


def ledger(folder: Path) -> Callable[[], Ledger]:
    limits = Limits(10, 10, repr(GNMax(4.0)))
    return partial(Ledger, folder / "ledger.db", KEY, folder / "ledger.head", "run", limits)


def arguments(folder: Path, **others: Any) -> dict[str, Any]:
    given = {"mechanism": GNMax(4.0), "open_ledger": ledger(folder), "private": folder, "key": KEY, "n_parts": 20}
    return given | others


X = np.arange(6, dtype=np.float32)[:, None]
COUNTS = np.tile([13, 7, 0], (6, 1))


def refuse(_: Any = None) -> Any:
    raise ValueError(f"{SECRET} {COUNTS[0]}")


class Refusing:
    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise ValueError(f"{SECRET} {COUNTS[0]}")


ELECTION = CellVote(refuse, Cells(Space(np.zeros(1), np.ones(1)), np.array([[0.0], [9.0]])), 1, 2)
REFUSING = LocalVoteCounter(Records(np.zeros((3, 1)), np.zeros(3, dtype=np.int64)), KEY)
CALLS: dict[str, Callable[[Any], Any]] = {
    "collect": lambda aggregator: aggregator("collect", X, refuse),
    "evaluate": lambda aggregator: aggregator("evaluate", Refusing(), np.zeros(6, dtype=np.int64)),
    "label": lambda aggregator: aggregator("label", X),
    "account": lambda aggregator: aggregator("account", X, 1e-5),
    "release_round": lambda aggregator: aggregator("release_round", "round 1", ELECTION, Histogram(2.0), REFUSING),
    "room": lambda aggregator: aggregator("room"),
    "spent": lambda aggregator: aggregator("spent"),
    "stored_prefix": lambda aggregator: aggregator("stored_prefix", X),
    "close": lambda aggregator: aggregator("close"),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_aggregators_errors_quote_nothing(call: str, tmp_path: Path) -> None:
    """Its ledger, its noise and its voters all fail, with a message that quotes votes."""
    given = arguments(tmp_path, open_ledger=refuse, entropy=refuse)
    plain = Aggregator(**given)
    with pytest.raises(RunError) as caught:
        CALLS[call](lambda name, *rest: getattr(plain, name)(*rest))
    assert str(caught.value) == "the aggregator failed (ValueError); nothing was released; go on with resume=True"
    assert "canary" not in shown(caught.value)


def test_votes_are_returned_to_nobody_and_said_nowhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    aggregator = Aggregator(**arguments(tmp_path))
    votes = StoredCount(COUNTS, 20)
    assert aggregator.collect(X, votes) is None
    assert aggregator.evaluate(X, np.zeros(6, dtype=np.int64)) is None
    answers = aggregator.label(X)
    assert answers._fields == ("labels", "room")
    assert aggregator.account(X, 1e-5) is None
    assert aggregator.close() is None
    assert capfd.readouterr() == ("", "")
    public = {name for name in vars(Aggregator) if not name.startswith("_")}
    known = CALLS.keys() | {"sanitise", "head", "verify_published_labels", "pid"}
    assert public == known  # whoever adds a method says here that it returns nothing private


class Quotes(BaseEstimator):
    """Fits up to 30 examples; beyond, it says how many there were."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> Quotes:
        if len(X) > 30:
            raise ValueError(f"{len(X)} examples are too many: {SECRET}")
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.zeros(len(X), dtype=np.int64)


class Never(Quotes):
    def fit(self, X: np.ndarray, y: np.ndarray) -> Never:
        raise ValueError(f"{len(X)} examples, and depth must be even")


def test_a_probe_does_not_tell_how_many_records_a_part_has() -> None:
    public = np.zeros((50, 2), dtype=np.float32)
    told = Worker(Teaching([Recipe(f"{__name__}.Quotes", {})], 2, 0)).probe(0, public, 1237)
    assert "as many examples as a part has (ValueError)" in str(told)
    told = Worker(Teaching([Recipe(f"{__name__}.Never", {})], 2, 0)).probe(0, public, 1237)
    assert "on 8 public examples: 8 examples, and depth must be even" in str(told)


def test_a_workers_own_errors_quote_nothing() -> None:
    worker = Worker(Teaching([Recipe(f"{__name__}.Quotes", {})], 2, 0))
    with pytest.raises(Failed, match="a teacher worker failed"):
        worker.train(TrainingJob(0, (0,)), {0: SECRET})  # type: ignore[dict-item]


PRINTS = f"""
import logging, os, sys, warnings
from pate.boundary._guard import silence, silenced
logging.basicConfig()  # before, as a library would
def show(what):
    print(what)
    print(what, file=sys.stderr)
    logging.error(what)
    warnings.warn(what)
    os.write(2, what.encode())
    os.system("echo " + what)
print("before")
with silenced():
    show({SECRET!r})
print("after", flush=True)
print("error", file=sys.stderr)
silence()
show({SECRET!r})
"""


def test_whatever_prints_is_silenced_for_a_while_or_for_good() -> None:
    shown = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True, text=True, timeout=60)
    assert (shown.stdout, shown.stderr) == ("before\nafter\n", "error\n")


SETTINGS = {
    "n_teachers": 100,
    "data": {"source": "csv", "private": "a.csv", "public": "b.csv", "label": "kind", "classes": ["x", "y"]},
    "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
    "mechanism": {"name": "gnmax", "sigma": 5},
    "student": {"name": "supervised"},
}


@pytest.mark.parametrize(("n_records", "refused"), [(123, True), (837, False)])
def test_small_parts_are_counted_for_the_operator_alone(
    n_records: int, refused: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    config = parse_config(SETTINGS)
    told: list[str] = []
    for tell in (told.append, Console().info_private):  # standard error is no terminal here
        with pytest.raises(ConfigError) if refused else nullcontext() as caught:
            _check_part_sizes(config, n_records, 20, False, tell)
        if caught is not None:
            assert "n_teachers = 100: parts of the private records would be too small" in str(caught.value)
            assert not set("123456789") & set(str(caught.value).replace("n_teachers = 100", ""))
    assert len(told) == 1
    assert "records" in told[0]
    assert capfd.readouterr() == ("", "")


@given(n_teachers=st.integers(2, 10**5), n_records=st.integers(0, 10**9), n_classes=st.integers(2, 1000))
def test_records_and_teachers_are_told_in_whole_numbers(n_teachers: int, n_records: int, n_classes: int) -> None:
    config, told = parse_config({**SETTINGS, "n_teachers": n_teachers}), list[str]()
    with suppress(ConfigError):
        _check_part_sizes(config, n_records, n_classes, False, told.append)
    for number in re.findall(r"\d[^ ;]*", " ".join(told)):
        assert number.replace(",", "").isdecimal()


def test_teachers_that_would_have_enough_are_sixty() -> None:
    told: list[str] = []
    with pytest.raises(ConfigError):
        _check_part_sizes(parse_config({**SETTINGS, "n_teachers": 500}), 1234, 2, False, told.append)
    assert told == ["about 2 private records per teacher; about 60 teachers would have enough"]


def test_a_run_tells_logs_nothing_of_the_size_of_parts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The same through a whole run: it is refused before anything is tried or made."""
    config = parse_config({**SETTINGS, "data": {"source": "arrays"}})
    records = Records(np.zeros((123, 2), dtype=np.float32), np.resize([0, 1], 123))
    public = PublicData(np.ones((200, 2), dtype=np.float32), ("x", "y"))
    with pytest.raises(ConfigError, match="too small to learn from"):
        pipeline.run(config, tmp_path / "run", public=public, private=records)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ConfigError, match="too small to learn from"):
        pipeline.run(config, tmp_path / "run", public=replace(public, benchmark=True), private=records)
    assert "about 1 private records per teacher" in capfd.readouterr().err  # public data that plays private


def test_a_run_of_other_data_is_refused_without_its_file_names(tmp_path: Path) -> None:
    def config(name: str) -> Config:
        return parse_config({**SETTINGS, "data": {**SETTINGS["data"], "private": name}})  # type: ignore[dict-item]

    with Run.create(tmp_path / "run", config("crippen.csv"), resume=False):
        pass
    with pytest.raises(RunError) as caught, Run.create(tmp_path / "run", config("a.csv"), resume=True):
        pass
    assert "other data.private" in str(caught.value)
    assert "crippen" not in str(caught.value)


@pytest.mark.parametrize("at_a_terminal", [False, True])
def test_what_nobody_foresaw_is_a_kind_and_a_place(
    at_a_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    exec(compile(f"def app(**_):\n    raise ValueError({SECRET!r})", cli.__file__, "exec"), names)  # in our own file
    monkeypatch.setattr(cli, "app", names["app"])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: at_a_terminal)
    with pytest.raises(ValueError if at_a_terminal else SystemExit) as caught:
        cli.main()
    if not at_a_terminal:
        assert caught.value.code == 1
        text = capsys.readouterr().err
        assert text.startswith("pate: error: ValueError in pate.cli, __init__.py:")
        assert "canary" not in text


def test_an_error_of_the_system_without_a_number_is_a_kind() -> None:
    assert error_kind(OSError(SECRET)) == "OSError"
    assert error_kind(FileNotFoundError(2, SECRET, SECRET)) == "FileNotFoundError: No such file or directory"


def test_an_error_of_the_system_that_somebody_else_words_is_a_kind_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", lambda **_: raise_(OSError(SECRET)))
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err == "pate: error: system: OSError\n"


class OwnBaseline(BaseEstimator):
    """Prints what it sees; a fit that fails quotes it."""

    epsilon_, delta_ = 1.0, 0.0

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def fit(self, X: np.ndarray, y: np.ndarray) -> OwnBaseline:
        print(SECRET)
        print(SECRET, file=sys.stderr)
        if self.fails:
            raise DataError(f"{SECRET}: {X[0]}")
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.zeros(len(X), dtype=np.int64)


def test_a_baseline_of_ones_own_tells_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from pate.baselines._run import run_baseline

    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("length,kind\n" + "1,x\n2,y\n" * 10)
    content = {
        "data": SETTINGS["data"],
        "baseline": {"name": f"{__name__}.OwnBaseline", "params": {"fails": True}},
        "budget": {"epsilon": 1},
        "records": 20,
    }
    config = parse_config(content, BaselineConfig)
    with pytest.raises(PateError, match=r"the baseline failed \(DataError\)"):
        run_baseline(config, tmp_path / "run", config_dir=tmp_path)
    said = "".join(capfd.readouterr())
    assert "ε to publish: 1" in said
    assert "canary" not in said
