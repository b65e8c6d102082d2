"""pate student: further students on labels that are paid for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pate.cli._options import AsJson, Trust
from pate.errors import ConfigError
from pate.report._pages import percent

if TYPE_CHECKING:
    from pate.followup import ExtraStudent, Trials
    from pate.report.schema import Student


def student(
    run: Annotated[str, typer.Argument(help="directory or URL of a `pate run` that has released its labels")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="student.key=value, for example student.name=mixmatch")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="take the section `student` of this YAML file")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where data files are; else as when the run began")] = None,
    address: Annotated[str | None, typer.Option(help="train networks on a GPU of this Ray cluster")] = None,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Train another student on the labels of a run, and say which one agrees most with held-out labels.

    Nothing is asked and nothing charged: ε stays what it is.
    """
    from pate.config import read_yaml
    from pate.followup import train_extra_student

    section: Any = None
    if config is not None:
        section = read_yaml(config).get("student")
        if not isinstance(section, dict):
            raise ConfigError(f"{config}: has no section `student`; add one, as in the config of a run")
    trials = train_extra_student(
        run, set_ or (), student=section, data_dir=data_dir, address=address, trust=trust or ()
    )
    if as_json:
        print(json.dumps(_as_object(trials)))
    else:
        _print(trials, run)


def _print(trials: Trials, run: str) -> None:
    from pate.cli._options import print_table

    tested = any(one.test is not None for one in trials.students)
    test_header = ("right on test examples", "mean over classes", "AUC") if tested else ()
    rows = [("student", "agrees with held-out labels", "mean over classes", *test_header, "where")]
    for one in trials.students:
        found = one.agreement
        shown = "too few labels to tell" if found is None else f"{_plain(found.share)} ± {100 * found.error:.1f} %"
        scores = _scores(one.test) if tested else ()
        rows.append((one.name, shown, "" if found is None else percent(found.balanced), *scores, _where(one)))
    print_table(rows)
    if tested:
        print("test examples have no say in which is best: a score that a student was chosen by is too good")
    best = trials.best
    if best is not None and best.agreement is not None:
        commonest = percent(best.agreement.commonest)
        print(f"always saying the commonest class agrees with {commonest}; ± is one standard error")
        alike = trials.as_good()
        lead = f", though chance may explain its lead over {', '.join(a.name for a in alike)}" if alike else ""
        print(f"best by the mean over classes: {best.name}{lead}")
        if not best.own:
            print("to make it the run's own student, with report and all: the same command as for the run, with that")
            print(f"student in the config, and --out {run} --resume; it costs nothing more")
    print(f"ε stays {trials.epsilon:.3g} at δ = {trials.delta:g}: no label was asked for")


def _scores(test: Student | None) -> tuple[str, ...]:
    """On test examples: the share that is right, the mean over classes, and the area under the curve."""
    if test is None:
        return ("not loaded", "", "")
    return percent(test.accuracy), percent(test.balanced_accuracy), "" if test.auc is None else f"{test.auc:.3f}"


def _where(one: ExtraStudent) -> str:
    return "student/ (the run's own)" if one.own else f"students/{one.folder.name}/"


def _plain(share: float) -> str:
    return f"{100 * share:.1f}"


def _as_object(trials: Trials) -> dict[str, Any]:
    students = [
        {
            "name": one.name,
            "settings": one.settings,
            "own": one.own,
            "folder": "student" if one.own else f"students/{one.folder.name}",
            "agreement": None
            if one.agreement is None
            else {
                "share": one.agreement.share,
                "error": one.agreement.error,
                "mean_over_classes": one.agreement.balanced,
                "commonest": one.agreement.commonest,
                "labels": len(one.agreement.labels),
            },
            "test": None
            if one.test is None
            else {
                "examples": one.test.test_examples,
                "accuracy": one.test.accuracy,
                "mean_over_classes": one.test.balanced_accuracy,
                "auc": one.test.auc,
            },
        }
        for one in trials.students
    ]
    best = None if trials.best is None else trials.best.name
    as_good = [one.name for one in trials.as_good()]
    return {
        "students": students,
        "best": best,
        "as_good": as_good,
        "epsilon": trials.epsilon,
        "delta": trials.delta,
    }
