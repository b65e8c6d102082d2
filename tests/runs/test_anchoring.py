"""By default a ledger is anchored outside of its run: a copy that goes on, or was stripped of its charges, is found."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest
from support.small_data import digits_with_votes

from pate import pipeline
from pate.cli._options import as_option
from pate.config import Config, parse_config
from pate.errors import PateError, RunError
from pate.ledger import SharedBudget, SharedLedger
from pate.ledger._chain import identity
from pate.runs._console import Quiet
from pate.runs._run_ledger import _NONE, anchor_of, choose_anchor, known_anchor, ledger_opener
from pate.runs.run import Run, remove_empty_run
from pate.voters import voters_of

PUBLIC, VOTES = digits_with_votes(20)


def config(**changes: object) -> Config:
    content = {
        "voters": "stored",
        "stored": {"file": "given.npy"},
        "n_teachers": 20,
        "data": {"source": "digits"},
        "mechanism": {"name": "gnmax", "sigma": 4},
        "budget": {"max_queries": 30},
        "student": {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}},
        "backend": "local",
    }
    return parse_config(content | changes)


class Heard(Quiet):
    def __init__(self) -> None:
        self.said: list[str] = []

    def info(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "pate"


def run(out: Path | str, resume: bool = False, **options: object) -> pipeline.Outcome:
    return pipeline.run(config(), out, public=PUBLIC, private=VOTES, resume=resume, pages=False, **options)  # type: ignore[arg-type]


def stripped(run: Path, to: Path, *more: str) -> Path:
    """A copy of the run as it was before anything was released."""
    copy = Path(shutil.copytree(run, to))
    for name in ("labels.npz", "report.json", "ledger.db", "private/ledger.head", "private/votes.npz", *more):
        (copy / name).unlink(missing_ok=True)
    shutil.rmtree(copy / "student")
    return copy


def test_a_copy_whose_charges_were_stripped_is_found(tmp_path: Path) -> None:
    assert run(tmp_path / "run").report.anchored is True
    for number, more in enumerate([(), ("private/anchor",), ("private/anchor", "private/signatures.json")]):
        copy = stripped(tmp_path / "run", tmp_path / f"copy-{number}", *more)
        for options in ({}, {"anchor": "none"}, {"anchor": "new"}, {"anchor": str(tmp_path / "another")}):
            with pytest.raises(RunError, match=r"rolled back, or another copy|begun with your own anchor"):
                run(copy, resume=True, **options)
        (copy / "private" / "anchor").write_text(_NONE)
        with pytest.raises(RunError, match="rolled back, or another copy"):
            run(copy, resume=True)
        assert not (copy / "labels.npz").exists()
    assert run(tmp_path / "run", resume=True).report.anchored is True


def test_of_two_copies_that_go_on_one_is_refused(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", config()) as begun:
        chosen = anchor_of(config(), begun, Path(), None, print)
        ledger_opener(voters_of(config()), begun, anchor=chosen)().close()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    run(tmp_path / "run", resume=True)
    with pytest.raises(RunError, match="rolled back, or another copy"):
        run(tmp_path / "copy", resume=True)


def test_a_run_may_be_renamed_and_one_that_was_deleted_leaves_its_name(tmp_path: Path) -> None:
    run(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "renamed")
    run(tmp_path / "renamed", resume=True)
    run(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    assert run(tmp_path / "run").report.anchored is True


def test_the_anchor_is_for_the_user_alone(tmp_path: Path, state: Path) -> None:
    before = os.umask(0)
    try:
        run(tmp_path / "run")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (state, state / "anchors")} == {0o700}
    assert {stat.S_IMODE(file.stat().st_mode) for file in (state / "anchors").iterdir()} == {0o600}


def test_a_run_without_an_anchor_says_so(tmp_path: Path, state: Path) -> None:
    outcome = run(tmp_path / "run", anchor="none")
    assert outcome.report.anchored is False
    assert "of the run that goes on beside it would not be noticed" in outcome._repr_html_()
    assert run(tmp_path / "run", resume=True).report.anchored is False
    assert not (state / "anchors").exists()


def test_a_home_that_cannot_be_written_leaves_no_anchor_and_says_so(tmp_path: Path, state: Path) -> None:
    state.parent.write_text("no folder")
    heard = Heard()
    assert run(tmp_path / "run", console=heard).report.anchored is False
    assert [line for line in heard.said if "has no anchor" in line and "would not be noticed" in line]
    assert run(tmp_path / "run", resume=True).report.anchored is False


def test_a_run_that_was_moved_goes_on_once_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "run")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of another machine"))
    with pytest.raises(RunError) as error:
        run(tmp_path / "run", resume=True)
    assert "If the run was moved here for good, add --anchor new" in error.value.worded(as_option)
    assert run(tmp_path / "run", resume=True, anchor="new").report.anchored is True
    run(tmp_path / "run", resume=True)
    copy = stripped(tmp_path / "run", tmp_path / "copy")
    with pytest.raises(RunError, match="rolled back, or another copy"):
        run(copy, resume=True, anchor="new")


def test_a_run_in_storage_goes_on_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    url = f"file://{tmp_path}/store"
    assert run(url).report.anchored is False
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of another machine"))
    run(url, resume=True)
    with pytest.raises(PateError, match="a run in storage goes on anywhere"):
        run(url, resume=True, anchor="new")
    assert run(f"{url}-2", anchor=str(tmp_path / "anchor")).report.anchored is True


def test_the_anchor_is_the_one_it_was_begun_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(folder: Run, wanted: str | None) -> str | None:
        return choose_anchor(folder, identity(folder.key), wanted, print).place

    monkeypatch.chdir(tmp_path)
    with Run.create(tmp_path / "run", config()) as folder:
        assert chosen(folder, "anchor") == str(tmp_path / "anchor")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with Run.create(tmp_path / "run", config(), resume=True) as folder:
        assert chosen(folder, None) == chosen(folder, "../anchor") == str(tmp_path / "anchor")
        assert known_anchor(folder, identity(folder.key)) == str(tmp_path / "anchor")
        for another in ("anchor", "none", "new"):
            with pytest.raises(RunError, match="was begun with the anchor"):
                chosen(folder, another)
    copy = Path(shutil.copytree(tmp_path / "run", tmp_path / "copy"))
    (copy / "private" / "anchor").unlink()
    with Run.create(copy, config(), resume=True) as folder:
        assert chosen(folder, None) == str(tmp_path / "anchor"), "it is noted beside the user's own, too"


def test_an_anchor_that_a_sent_run_names_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Run.create(tmp_path / "run", config()) as folder:
        choose_anchor(folder, identity(folder.key), str(tmp_path / ".profile"), print)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    (tmp_path / ".profile").write_text("# mine\n")
    with pytest.raises(RunError, match="if that is right, name it"):
        run(tmp_path / "run", resume=True)
    assert (tmp_path / ".profile").read_text() == "# mine\n"


def test_a_copy_of_a_shared_ledger_is_found(tmp_path: Path) -> None:
    shared = SharedLedger.create(tmp_path / "shared", SharedBudget(8.0, 20.0, 1e-5))
    budget = {"max_queries": 30, "ledger": {"path": "shared", "id": shared.id}}
    shutil.copytree(tmp_path / "shared", tmp_path / "copy")

    def charge(out: str, place: str) -> bool | None:
        named = budget | {"ledger": {"path": place, "id": shared.id}}
        given = config(budget=named)
        outcome = pipeline.run(given, tmp_path / out, public=PUBLIC, private=VOTES, config_dir=tmp_path, pages=False)
        return outcome.report.anchored

    assert charge("one", "shared") is True
    assert charge("two", "shared") is True
    with pytest.raises(RunError, match="rolled back, or another copy"):
        charge("three", "copy")


def test_a_run_that_never_began_leaves_nothing(tmp_path: Path, state: Path) -> None:
    with pytest.raises(PateError), Run.create(tmp_path / "run", config()) as begun, remove_empty_run(begun):
        ledger_opener(voters_of(config()), begun, anchor=anchor_of(config(), begun, Path(), None, print))()
        raise PateError("a mistake")
    assert not (tmp_path / "run").exists()
    assert list((state / "anchors").iterdir()) == []
