"""What is done with a finished run: pate student (further students on labels that are paid for), pate forget."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pate.cli._options import AsJson, DataDirOfRun, Trust, print_table
from pate.errors import ConfigError, RunError

if TYPE_CHECKING:
    from pate.followup import Trials


def student(
    run: Annotated[str, typer.Argument(help="directory or URL of a `pate run` that has released its labels")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="student.key=value, for example student.name=mixmatch")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="take the section `student` of this YAML file")] = None,
    data_dir: DataDirOfRun = None,
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
    from pate.report._pages import percent

    tested = any(one.test is not None for one in trials.students)
    test_header = ("right on test examples", "mean over classes", "AUC") if tested else ()
    rows = [("student", "agrees with held-out labels", "mean over classes", *test_header, "where")]
    for one in trials.students:
        found, test = one.agreement, one.test
        shown = "too few labels to tell" if found is None else f"{100 * found.share:.1f} ± {100 * found.error:.1f} %"
        scores: tuple[str, ...] = ("not loaded", "", "") if tested else ()
        if test is not None:
            auc = "" if test.auc is None else f"{test.auc:.3f}"
            scores = percent(test.accuracy), percent(test.balanced_accuracy), auc
        where = "student/ (the run's own)" if one.own else f"students/{one.folder.name}/"
        rows.append((one.name, shown, "" if found is None else percent(found.balanced), *scores, where))
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


def _as_object(trials: Trials) -> dict[str, Any]:
    students: list[dict[str, Any]] = []
    for one in trials.students:
        folder = "student" if one.own else f"students/{one.folder.name}"
        shown: dict[str, Any] = {"name": one.name, "settings": one.settings, "own": one.own, "folder": folder}
        shown |= {"agreement": None, "test": None}
        if (found := one.agreement) is not None:
            shown["agreement"] = {"share": found.share, "error": found.error, "mean_over_classes": found.balanced}
            shown["agreement"] |= {"commonest": found.commonest, "labels": len(found.labels)}
        if (test := one.test) is not None:
            shown["test"] = {"examples": test.test_examples, "accuracy": test.accuracy}
            shown["test"] |= {"mean_over_classes": test.balanced_accuracy, "auc": test.auc}
        students.append(shown)
    best = None if trials.best is None else trials.best.name
    content = {"students": students, "best": best, "as_good": [one.name for one in trials.as_good()]}
    return content | {"epsilon": trials.epsilon, "delta": trials.delta}


def forget(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="run directory, or its URL")],
    ids: Annotated[list[str] | None, typer.Option("--id", help="id of a record, as in the data's id column")] = None,
    rows: Annotated[
        str | None, typer.Option(help="rows of private records, from 0, where there are no ids: 5 or 5,17")
    ] = None,
    data_dir: DataDirOfRun = None,
    trust: Trust = None,
) -> None:
    """Unlearn records: train the teachers they touched again, without them."""
    from pate import followup as forgetting
    from pate.config import Config
    from pate.data.private import records_of
    from pate.runs._signatures import own_or_trusted
    from pate.runs.run import Run, Version
    from pate.voters import voters_of

    try:
        numbers = [] if rows is None else [int(row) for row in rows.split(",")]
    except ValueError:
        raise ConfigError("{rows}: must be numbers of rows with commas between, such as 5,17", rows=rows) from None
    stack = ctx.with_resource(ExitStack())
    found = stack.enter_context(Run.load(run))
    stack.enter_context(own_or_trusted(trust or (), found))
    known_data_dir, config_dir = found.places
    config = found.config
    if not isinstance(config, Config):
        raise RunError(f"{run}: is a run of `pate baseline`, which has no teachers to train again")
    if getattr(config.data, "read_by", "driver") == "workers":
        raise RunError("pate forget: only for runs whose data is read by the driver (data.read_by)")
    voters = voters_of(config)
    public, private = voters.load(data_dir or known_data_dir, config_dir, by_workers=False)
    with Run.create(run, config, resume=True) as directory:
        n_teachers = forgetting.forget(config, public, records_of(private), directory, ids or (), numbers, config_dir)
        directory.sync()
        version = Version.of(directory).version
    print("\n".join(voters.forgotten(n_teachers, version)))
