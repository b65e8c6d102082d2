"""Before any training: pate plan (noise for a target ε, what a config can answer, what to choose), pate account."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sized
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pate.cli._options import AsJson, MechanismName, naming_options, own_settings, print_table, required_settings
from pate.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np

    from pate.components._registry import Guard
    from pate.config import Config
    from pate.data.private import PrivateData
    from pate.data.public import PublicData
    from pate.mechanisms import Counts, Mechanism
    from pate.planning.costs import CostSummary
    from pate.planning.plan import Workload
    from pate.voters.base import Voters

_PRIVATE = "private: do not publish"


@naming_options
def plan(
    ctx: typer.Context,
    config: Annotated[Path | None, typer.Argument(help="take mechanism, budget and teachers from this config")] = None,
    mechanism: MechanismName = None,
    target_epsilon: Annotated[float | None, typer.Option(help="find the least noise for this ε")] = None,
    delta: Annotated[float | None, typer.Option(help="δ; 1e-5 if left out")] = None,
    max_queries: Annotated[int | None, typer.Option(help="the most queries that may ever be asked")] = None,
    max_answers: Annotated[int | None, typer.Option(help="the most queries that may ever be answered")] = None,
    teachers: Annotated[int | None, typer.Option(help="number of teachers")] = None,
    classes: Annotated[int | None, typer.Option(help="number of classes; 10 if left out")] = None,
    votes: Annotated[Path | None, typer.Option(help="expected answers for these votes")] = None,
    gaps: Annotated[
        str | None,
        typer.Option(help="expected answers for assumed leads of the plurality, lead:share, as 240:0.7,100:0.3"),
    ] = None,
    records: Annotated[
        int | None, typer.Option(help="recommend voters, noise and budget for so many private records, or ids")
    ] = None,
    public: Annotated[int | None, typer.Option(help="with --records: how many public examples there are")] = None,
    stand_in: Annotated[
        bool,
        typer.Option("--stand-in", help="with --records and CONFIG, whose data are public and labelled: try teachers"),
    ] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", help="with CONFIG: key=value, as for `pate run`")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="with CONFIG: where data files are")] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(help="module.Class that CONFIG names and that may be imported; may be given again"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the noise for a target ε; say what a config can answer, its ε and its time, before any training."""
    from pate.components._registry import importing_only
    from pate.mechanisms import build, mechanism_class
    from pate.planning import plan as planning
    from pate.voters import voters_of

    if set_ and config is None:
        raise ConfigError("--set: changes a config; name one, or give options such as --mechanism and --max-queries")
    if stand_in:
        if config is None:
            raise ConfigError("--stand-in: is for a config whose data are labelled and public; name it")
        with importing_only(trust or (), beside=True):
            _try_numbers(config, set_ or [], data_dir, records, target_epsilon, delta, max_queries, as_json)
        return
    if records is not None:
        _recommend(ctx, config, records, 10 if classes is None else classes, target_epsilon, delta, public, as_json)
        return
    seconds: tuple[float | None, float | None] = (None, None)
    refused, trusted = list[str](), {*(trust or ()), *([mechanism] if mechanism else [])}
    if config is not None:
        from pate.config import load_config

        for option, value in (("mechanism", mechanism), ("teachers", teachers), ("classes", classes)):
            if value is not None:
                raise ConfigError(f"--{option} {value}: {config} says that; leave it out, or use --set")
        with importing_only(trusted, beside=True) as guard:
            limits = {"delta": delta, "max_queries": max_queries, "max_answers": max_answers}
            given = [f"budget.{key}={value}" for key, value in limits.items() if value is not None]
            given += [f"mechanism.{key}={value}" for key, value in own_settings(ctx).items()]
            found = load_config(config, [*(set_ or ()), *given])
            voters = voters_of(found)
            known, private = voters.load(data_dir, config.parent, by_workers=False)
            seconds = _seconds(voters, known, private, config.parent, guard)
            own_plan = voters.plan(known, target_epsilon, seconds[1])
            if own_plan is not None:
                print(json.dumps(own_plan.content) if as_json else "\n".join(own_plan.lines))
                return
            workload = planning.Workload(*voters.query_limits, found.budget.delta, known.n_classes)
            settings, teachers = dict(found.mechanism), voters.n_parts
        refused = sorted(set(guard.refused))
    else:
        delta = 1e-5 if delta is None else delta
        settings = required_settings(ctx, delta=delta)
        asked = mechanism_class(settings).default_queries(settings) if max_queries is None else max_queries
        workload = planning.Workload(asked, max_answers, delta, 10 if classes is None else classes)
    counts, weights = _histograms(votes, gaps, teachers, workload.n_classes)
    if votes is not None and counts is not None:
        teachers = int(counts[0].sum())
        workload = dataclasses.replace(workload, n_classes=counts.shape[1])
    with importing_only(trusted, beside=True):
        if target_epsilon is None:
            chosen = build(settings, teachers)
        elif mechanism_class(settings).free_parameter in own_settings(ctx):  # the noise is given: solve for the queries
            if max_queries is not None:
                noise = next(iter(own_settings(ctx)))
                raise ConfigError(
                    f"--max-queries {max_queries}: follows from --{noise} and --target-epsilon; "
                    "leave out one of the three"
                )
            chosen, workload = planning.solve_queries(settings, target_epsilon, workload, teachers)
        else:
            chosen = planning.solve_noise(settings, target_epsilon, workload, teachers)
    by_method, one_more = planning.epsilon_by_method(chosen, workload), planning.one_more_query(chosen, workload)
    if config is None:
        epsilon = planning.epsilon_of(chosen, workload)
    else:
        epsilon = _epsilon_of_run(found, chosen, workload, target_epsilon)
        if getattr(found.budget, "sanitise", None) is not None:  # of its cost these two know nothing
            by_method, one_more = {}, None
    expected = None if counts is None else planning.expect(chosen, counts, weights, workload.max_queries)
    result = {
        "mechanism": {"name": chosen.name, **dataclasses.asdict(chosen)},  # type: ignore[call-overload]
        "max_queries": workload.max_queries,
        "max_answers": workload.max_answers,
        "delta": workload.delta,
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "epsilon_by_method": by_method,
        "one_more_query": one_more,
        "note": chosen.note,
        "unanimous": planning.answerable(chosen, teachers, workload.n_classes),
        "expected": None if expected is None else dataclasses.asdict(expected),
        "expected_is_private": votes is not None,
        "seconds_of_training": seconds[0],
        "seconds_of_student": seconds[1],
        "not_imported": refused,
    }
    if config is not None and (rounds := voters.rounds_planned()):
        result["rounds"] = rounds
    if as_json:
        print(json.dumps(result))
    else:
        _print_plan(result)


def _epsilon_of_run(config: Config, mechanism: Mechanism, workload: Workload, target_epsilon: float | None) -> float:
    """What a run of the config would publish, with this mechanism and so many queries in place of its own."""
    from pate.voters import voters_of

    settings = {"name": config.mechanism["name"], **dataclasses.asdict(mechanism)}  # type: ignore[call-overload]
    budget = config.budget.model_copy(update={"max_queries": workload.max_queries})
    voters = voters_of(config.model_copy(update={"mechanism": settings, "budget": budget}))
    if target_epsilon is None:
        return voters.publishable_epsilon(workload.n_classes)  # refused where it is above budget.epsilon
    epsilon = voters.cost(workload.n_classes).epsilon
    if epsilon > target_epsilon:
        raise ConfigError(
            f"--target-epsilon {target_epsilon:g}: does not count the figure of budget.sanitise, with which the run "
            f"would cost {epsilon:.3g}; leave that out, or ask for less"
        )
    return epsilon


def _recommend(
    ctx: typer.Context,
    config: Path | None,
    records: int,
    classes: int,
    target_epsilon: float | None,
    delta: float | None,
    public: int | None,
    as_json: bool,
) -> None:
    """Print a recommendation of voters, mechanism and budget: the YAML to paste, and the alternatives in one table."""
    from pate.config._yaml_loader import dump_yaml
    from pate.planning.plan import describe_parameters, recommend, usual_delta
    from pate.runs._console import Console

    if target_epsilon is None:
        raise ConfigError("--records: needs --target-epsilon, the ε that may be spent, such as 2")
    given = ["--mechanism" if ctx.params.get("mechanism") else "", "CONFIG" if config else "", *own_settings(ctx)]
    for name in filter(None, given):
        option = name if name in ("--mechanism", "CONFIG") else f"--{name.replace('_', '-')}"
        raise ConfigError(f"--records: recommends a mechanism itself; leave out {option}, or --records")
    delta = usual_delta(max(1, records)) if delta is None else delta
    with Console().trying(f"what {records:,} records allow at ε = {target_epsilon:g}"):
        found = recommend(records, classes, target_epsilon, delta, public)
    choice = found.choice
    if as_json:
        chances = [
            {"agree": share, "answered": answered, "plurality": right}
            for share, (answered, right) in choice.chances(classes).items()
        ]
        alternatives = [dataclasses.asdict(other) for other in found.others]
        content = {"recommended": dataclasses.asdict(choice), "why": found.why, "config": choice.settings(delta)}
        print(json.dumps(content | {"chances": chances, "alternatives": alternatives, "delta": delta}))
        return
    print(f"recommended: {choice.described}, because {found.why}")
    print(f"  ε to publish       at most {choice.epsilon:.4g} at δ = {delta:g}")
    print("\n".join(choice.explained(classes)))
    print("\npaste into the config:\n")
    for line in dump_yaml(choice.settings(delta)).splitlines():
        print(f"  {line}")
    print("\nalternatives, each within that ε:\n")
    rows: list[tuple[str, ...]] = [("voters", "mechanism", "asked", "labels", "records each", "ε")]
    for other in (choice, *found.others):
        voters, asked, labels = other.row()
        mechanism = f"{other.mechanism['name']} ({describe_parameters(other.mechanism)})"
        rows.append((voters, mechanism, asked, labels, f"{other.records_each:,}", f"{other.epsilon:.3g}"))
    print_table(rows, marked=1)


def _try_numbers(
    config: Path,
    overrides: list[str],
    data_dir: Path | None,
    records: int | None,
    target_epsilon: float | None,
    delta: float | None,
    max_queries: int | None,
    as_json: bool,
) -> None:
    """How many teachers are best for so many private records, by a config whose data are public."""
    from pate.config import load_config
    from pate.planning.plan import Workload, usual_delta
    from pate.preflight._features import with_learned_features
    from pate.runs._console import Console
    from pate.voters import voters_of

    if records is None or target_epsilon is None:
        raise ConfigError("--stand-in: needs --records and --target-epsilon, as 60000 and 2")
    found, console = load_config(config, overrides), Console()
    voters = voters_of(found)
    data, private = voters.load(data_dir, config.parent, by_workers=False)
    delta = usual_delta(max(1, records)) if delta is None else delta
    workload = Workload(max_queries or voters.query_limits[0], None, delta, data.n_classes)
    console.info(f"{config}: everything in it is taken to be public, labels too; nothing is protected")
    found = with_learned_features(found, data.X_public)
    result = voters_of(found).find_number(data, private, records, target_epsilon, workload, console.info)
    if as_json:
        content = {
            "mechanism": dataclasses.asdict(result.mechanism),  # type: ignore[call-overload]
            "max_queries": workload.max_queries,
            "delta": delta,
        }
        tried = [dataclasses.asdict(one) for one in result.tried]
        print(json.dumps({**content, "n_teachers": result.best.n_teachers, "tried": tried}))
        return
    spent = f"ε to publish at most {target_epsilon:g} at δ = {workload.delta:g}"
    print(f"{records:,} records, {workload.max_queries:,} queries by {result.mechanism}: {spent}\n")
    rows: list[tuple[str, ...]] = [
        ("teachers", "records each", "trained", "each is right", "plurality right", "released right")
    ]
    for one in result.tried:
        shares = (f"{100 * share:.1f} %" for share in (one.teacher, one.plurality, one.released))
        rows.append((f"{one.n_teachers:,}", f"{one.records_each:,}", f"{one.trained}", *shares))
    print_table(rows, marked=1 + result.tried.index(result.best))
    print(f"\nn_teachers: {result.best.n_teachers}   has most released labels right on the stand-in")
    if result.too_large:
        names = ", ".join(f"{number:,}" for number in result.too_large)
        print(f"not tried: {names}; the stand-in has too few records for teachers of that size")


def _seconds(
    voters: Voters[Any], public: PublicData, private: PrivateData, config_dir: Path, guard: Guard
) -> tuple[float | None, float | None]:
    """Run the checks of preflight, and say about how long training and student would take on this machine.

    None where that would take what `guard` refuses to import, or the number of private records, which is not public.
    """
    from pate.config._settings import public_record_count
    from pate.errors import NotTrusted
    from pate.preflight import run_checks
    from pate.preflight._features import with_learned_features
    from pate.runs._console import Quiet
    from pate.runs.context import RunContext, RunOptions
    from pate.voters import voters_of

    config = voters.config
    voters.build_components(lambda: suppress(NotTrusted))
    context = RunContext(config, "", RunOptions(config_dir=config_dir, pages=False), Quiet(), public)
    run_checks(context, skip=NotTrusted)
    student = context.student_seconds if context.student_seconds else None
    # How long it takes shows about how many records there are, and what is printed may end up in a log.
    records = len(private) if public.benchmark and isinstance(private, Sized) else public_record_count(config.data)
    if guard.refused or records is None:
        return None, student
    try:
        return voters_of(with_learned_features(config, public.X_public)).training_seconds(public, records), student
    except ConfigError:
        if guard.refused:  # by a network's own module, which is imported with its first weights
            return None, student
        raise


def _histograms(
    votes: Path | None, gaps: str | None, teachers: int | None, n_classes: int
) -> tuple[Counts | None, np.ndarray | None]:
    if votes is not None:
        from pate.data._formats import load_votes

        return load_votes(votes), None
    if gaps is None:
        return None, None
    if teachers is None:
        raise ConfigError("--gaps: needs --teachers, the number of votes in each histogram")
    from pate.planning.plan import histograms_of_gaps

    try:
        pairs = {int(gap): float(share) for gap, share in (item.split(":") for item in gaps.split(","))}
    except ValueError:
        raise ConfigError(f"--gaps {gaps}: write lead:share,lead:share, for example 240:0.7,100:0.3") from None
    return histograms_of_gaps(pairs, teachers, n_classes)


def _print_plan(result: dict[str, Any]) -> None:
    from pate.planning.plan import describe_parameters

    parameters = describe_parameters(result["mechanism"])
    limit = f", at most {result['max_answers']} answered" if result["max_answers"] else ""
    print(f"{result['mechanism']['name']} ({parameters}), {result['max_queries']} queries{limit}")
    if result["epsilon"] is None:
        print(f"  ε to publish       none at δ = {result['delta']:g}: add noise, ask fewer, or lower the δ per query")
    else:
        print(f"  ε to publish       {result['epsilon']:.4g} at δ = {result['delta']:g}")
    for method, epsilon in result["epsilon_by_method"].items():
        print(f"    {epsilon:<10.4g} {method}")
    if result["note"]:
        print(f"  {result['note']}")
    for number, one in enumerate(result.get("rounds", ()), start=1):
        by = "teachers that see by the student so far" if one["features"] == "student" else "teachers"
        print(f"  round {number}            {one['queries']:,} queries, {by}")
    if result["one_more_query"] is not None:
        print(f"  one more query     + {result['one_more_query']:.3g}")
    unanimous, expected = result["unanimous"], result["expected"]
    if unanimous["probability"] is not None:
        who = f"{unanimous['n_teachers']} teachers that all agree"
        print(f"  {who} get their label with probability {unanimous['probability']:.4g}")
    need = unanimous["teachers_for_half"], unanimous["teachers_for_99_percent"]
    words = ["no number of" if n is None else f"{n:,}" for n in need]
    print(f"  it takes {words[0]} unanimous teachers for a probability of 1/2, {words[1]} for 99 %")
    if expected is not None:
        note = f"   ({_PRIVATE})" if result["expected_is_private"] else ""
        print(f"  expected answers   {expected['answered']:.1f}{note}")
        if expected["plurality_share"] is not None:
            print(f"  of them the plurality  {100 * expected['plurality_share']:.1f} %{note}")
    if result["not_imported"]:
        names = result["not_imported"]
        print(f"  training           not timed, since a config is code: this one would import {', '.join(names)};")
        print(f"                     if you trust it, add {' '.join(f'--trust {name}' for name in names)}")
    for what in ("training", "student"):
        if result[f"seconds_of_{what}"] is not None:
            print(f"  {what:<18} about {result[f'seconds_of_{what}']:.1f} s on this machine")


@naming_options
def account(
    ctx: typer.Context,
    votes: Annotated[Path, typer.Argument(help=".npy file with counts, one row per query, one column per class")],
    delta: Annotated[float, typer.Option(help="δ of the whole list")],
    mechanism: MechanismName = None,
    queries: Annotated[int | None, typer.Option(help="count only the first N rows of the file")] = None,
    max_answers: Annotated[int | None, typer.Option(help="limit on answers, fixed beforehand")] = None,
    moments: Annotated[int, typer.Option(help="lnmax: moments in the published bound; the paper used 8")] = 8,
    plot: Annotated[Path | None, typer.Option(help="draw ε over the number of queries (.png, .svg, .pdf)")] = None,
    as_json: AsJson = False,
) -> None:
    """Compute what answering the queries of a votes file costs, by every method."""
    from pate.accounting import _parameters as parameters
    from pate.data._formats import load_votes
    from pate.mechanisms import build
    from pate.planning.costs import summarise

    parameters.delta(delta)
    if max_answers is not None:
        parameters.queries(max_answers, "max_answers")
    if queries is not None:
        parameters.queries(queries, "queries", least=1)
    counts = load_votes(votes, queries)
    if queries is not None and len(counts) < queries:
        raise DataError(f"--queries {queries}: {votes} holds only {len(counts)} rows")
    chosen = build(required_settings(ctx), int(counts[0].sum()))
    summary = summarise(chosen, counts, delta, max_answers, moments)
    if plot is not None:
        _plot(chosen, counts, delta, plot)
    if as_json:
        content = dataclasses.asdict(summary)
        methods = ("data_independent", "published_bound", "exact_rdp", "exact_pld")
        epsilon = {method: content.pop(method) for method in methods}
        print(json.dumps(content | {"epsilon": epsilon}))
    else:
        _print_summary(chosen, summary)


def _print_summary(mechanism: Mechanism, summary: CostSummary) -> None:
    print(f"{mechanism}: {summary.queries} queries, {summary.answered:.1f} answered on average ({_PRIVATE})")
    rows = [
        ("for every data set", summary.data_independent, "may be published if the limits were fixed beforehand"),
        ("published bound", summary.published_bound, _PRIVATE),
        ("exact, RDP", summary.exact_rdp, _PRIVATE),
        ("exact, PLD", summary.exact_pld, _PRIVATE),
    ]
    print(f"ε at δ = {summary.delta:g}")
    for name, value, note in rows:
        print(f"  {name:<20}{'none' if value is None else f'{value:.4f}':>10}   {note}")


def _plot(mechanism: Mechanism, counts: Counts, delta: float, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    from pate.planning.costs import cumulative_epsilons

    at = np.unique(np.linspace(1, len(counts), min(25, len(counts))).astype(np.int64))
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    styles = ("-", "--", ":", "-.")
    for (name, curve), style in zip(cumulative_epsilons(mechanism, counts, delta, at).items(), styles, strict=False):
        axes.plot(at, curve, style, label=name)
    axes.set(xlabel="queries", ylabel=f"ε at δ = {delta:g}", title=f"{mechanism}\n{_PRIVATE}", ylim=(0, None))
    axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:
        raise ConfigError(f"--plot {path}: {str(error).splitlines()[0]}") from None
    plt.close(figure)
