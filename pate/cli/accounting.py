"""pate account and pate plan: for people who have a votes file, or nothing yet."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Sized
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, ParamSpec, TypeVar

import typer

from pate.cli.mechanism_options import own_settings, required_settings
from pate.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np

    from pate.components.registry import Guard
    from pate.data.private import PrivateData
    from pate.data.public import PublicData
    from pate.mechanisms import Counts, Mechanism
    from pate.planning.costs import CostSummary
    from pate.planning.plan import Workload
    from pate.voters.base import Voters

P = ParamSpec("P")
R = TypeVar("R")

PRIVATE = "private: do not publish"

MechanismName = Annotated[
    str | None,
    typer.Option(
        "--mechanism",
        help="short name (lnmax, gnmax, confident-gnmax, …) or dotted path; the last options are the mechanisms' own",
    ),
]
Teachers = Annotated[int | None, typer.Option(help="number of teachers")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]


_OPTIONS = {"asked": "max_queries", "n_teachers": "teachers", "n_classes": "classes"}


def naming_options(command: Callable[P, R]) -> Callable[P, R]:
    """The command, whose errors name parameters as the options that they came from, unless they came from a config."""

    @wraps(command)
    def call(*arguments: P.args, **given: P.kwargs) -> R:
        from pate.accounting.parameters import ParameterError, shown

        try:
            return command(*arguments, **given)
        except ConfigError as error:
            from_config = given.get("config") is not None
            if isinstance(error, ParameterError):
                if from_config and given.get(_option(error.key)[2:].replace("-", "_")) is None:
                    raise
                raise ConfigError(f"{_option(error.key)} {shown(error.value)}: {error.wanted}") from None
            text = error.text()
            named = text
            if not from_config:
                named = re.sub(r"\bmechanism\.\w+", lambda found: _option(found[0]), text)
                named = named.replace("--mechanism = ", "--mechanism ")
            if named == text:
                raise
            raise ConfigError(named, **error.arguments) from None

    return call


def _option(key: str) -> str:
    """What a parameter is called on the command line.

    >>> _option("mechanism.query_delta"), _option("mechanism.name")
    ('--query-delta', '--mechanism')
    """
    name = key.removeprefix("mechanism.")
    return f"--{'mechanism' if name == 'name' else _OPTIONS.get(name, name).replace('_', '-')}"


@naming_options
def account(
    ctx: typer.Context,
    votes: Annotated[Path, typer.Argument(help=".npy file with counts, one row per query, one column per class")],
    delta: Annotated[float, typer.Option(help="δ of the whole list")],
    mechanism: MechanismName = None,
    queries: Annotated[int | None, typer.Option(help="only the first N rows")] = None,
    max_answers: Annotated[int | None, typer.Option(help="limit on answers, fixed beforehand")] = None,
    moments: Annotated[int, typer.Option(help="lnmax: moments in the published bound; the paper used 8")] = 8,
    plot: Annotated[Path | None, typer.Option(help="draw ε over the number of queries (.png, .svg, .pdf)")] = None,
    as_json: AsJson = False,
) -> None:
    """Compute what answering the queries of a votes file costs, by every method."""
    from pate.accounting import parameters
    from pate.data.arrays import load_votes
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
        print(json.dumps(_as_object(summary)))
    else:
        _print_summary(chosen, summary)


@naming_options
def plan(
    ctx: typer.Context,
    config: Annotated[Path | None, typer.Argument(help="take mechanism, budget and teachers from this config")] = None,
    mechanism: MechanismName = None,
    target_epsilon: Annotated[float | None, typer.Option(help="find the least noise for this ε")] = None,
    delta: Annotated[float | None, typer.Option(help="δ; 1e-5 if left out")] = None,
    max_queries: Annotated[int | None, typer.Option(help="the most queries that may ever be asked")] = None,
    max_answers: Annotated[int | None, typer.Option(help="the most queries that may ever be answered")] = None,
    teachers: Teachers = None,
    classes: Annotated[int, typer.Option(help="number of classes")] = 10,
    votes: Annotated[Path | None, typer.Option(help="expected answers for these votes")] = None,
    gaps: Annotated[
        str | None, typer.Option(help="or for assumed leads of the plurality: 240:0.7,100:0.2,10:0.1 (lead:share)")
    ] = None,
    records: Annotated[
        int | None, typer.Option(help="recommend everything for so many private records (persons, where ids are)")
    ] = None,
    public: Annotated[int | None, typer.Option(help="with --records: how many public examples there are")] = None,
    stand_in: Annotated[
        bool,
        typer.Option("--stand-in", help="with CONFIG, whose data are labelled and public, and --records: try teachers"),
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
    from pate.components.registry import importing_only
    from pate.mechanisms import build, mechanism_class
    from pate.planning import plan as planning
    from pate.voters import voters_of

    if set_ and config is None:
        raise ConfigError("--set: changes a config; name one, or give options such as --mechanism and --max-queries")
    if stand_in:
        from pate.cli.stand_in import print_numbers

        if config is None:
            raise ConfigError("--stand-in: is for a config whose data are labelled and public; name it")
        with importing_only(trust or (), beside=True):
            print_numbers(config, set_ or [], data_dir, records, target_epsilon, delta, max_queries, as_json)
        return
    if records is not None:
        _recommend(ctx, config, records, classes, target_epsilon, delta, public, as_json)
        return
    seconds, refused, trusted = Seconds(), list[str](), {*(trust or ()), *([mechanism] if mechanism else [])}
    if config is not None:
        from pate.config import load_config

        with importing_only(trusted, beside=True) as guard:
            limits = {"delta": delta, "max_queries": max_queries, "max_answers": max_answers}
            given = [f"budget.{key}={value}" for key, value in limits.items() if value is not None]
            found = load_config(config, [*(set_ or ()), *given])
            voters = voters_of(found)
            known, private = voters.load(data_dir, config.parent, by_workers=False)
            seconds = _seconds(voters, known, private, config.parent, guard)
            own_plan = voters.plan(known, target_epsilon, seconds.student)
            if own_plan is not None:
                print(json.dumps(own_plan.content) if as_json else "\n".join(own_plan.lines))
                return
            workload = planning.Workload(*voters.query_limits, found.budget.delta, known.n_classes)
            settings, teachers = dict(found.mechanism), voters.n_parts
        refused = sorted(set(guard.refused))
        settings |= own_settings(ctx)
    else:
        delta = 1e-5 if delta is None else delta
        settings = required_settings(ctx, delta=delta)
        asked = mechanism_class(settings).default_queries(settings) if max_queries is None else max_queries
        workload = planning.Workload(asked, max_answers, delta, classes)
    counts, weights = _histograms(votes, gaps, teachers, workload.n_classes)
    if votes is not None and counts is not None:
        teachers = int(counts[0].sum())
        workload = dataclasses.replace(workload, n_classes=counts.shape[1])
    with importing_only(trusted, beside=True):
        if target_epsilon is None:
            chosen = build(settings, teachers)
        elif mechanism_class(settings).free_parameter in own_settings(ctx):  # the noise is given: solve for the queries
            _refuse_both(ctx, max_queries)
            chosen, workload = planning.solve_queries(settings, target_epsilon, workload, teachers)
        else:
            chosen = planning.solve_noise(settings, target_epsilon, workload, teachers)
    if config is not None and target_epsilon is None and not own_settings(ctx):
        voters.publishable_epsilon(workload.n_classes)  # refused where it is above budget.epsilon
    result = _plan_object(chosen, workload, teachers, counts, weights, votes is not None)
    result |= {"seconds_of_training": seconds.training, "seconds_of_student": seconds.student, "not_imported": refused}
    if config is not None and (rounds := voters.rounds_planned()):
        result["rounds"] = rounds
    if as_json:
        print(json.dumps(result))
    else:
        _print_plan(result)


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
    from pate.cli.recommendation import print_recommendation

    if target_epsilon is None:
        raise ConfigError("--records: needs --target-epsilon, the ε that may be spent, such as 2")
    given = ["--mechanism" if ctx.params.get("mechanism") else "", "CONFIG" if config else "", *own_settings(ctx)]
    for name in filter(None, given):
        option = name if name in ("--mechanism", "CONFIG") else f"--{name.replace('_', '-')}"
        raise ConfigError(f"--records: recommends a mechanism itself; leave out {option}, or --records")
    print_recommendation(records, classes, target_epsilon, delta, public, as_json)


def _refuse_both(ctx: typer.Context, max_queries: int | None) -> None:
    """With noise and target ε given, the queries follow from them."""
    if max_queries is not None:
        noise = next(iter(own_settings(ctx)))
        raise ConfigError(
            f"--max-queries {max_queries}: with --{noise} and --target-epsilon, how many can be asked is worked out; "
            "leave out one of the three"
        )


class Seconds(NamedTuple):
    """About how long teachers and student take on this machine; None where nobody knows."""

    training: float | None = None
    student: float | None = None


def _seconds(voters: Voters[Any], public: PublicData, private: PrivateData, config_dir: Path, guard: Guard) -> Seconds:
    """Run the checks of preflight, and say how long training and student would take on this machine.

    None where that would take what `guard` refuses to import, or the number of private records, which is not public.
    """
    from pate.config.validation import public_record_count
    from pate.errors import NotTrusted
    from pate.preflight import run_checks
    from pate.preflight.features import with_learned_features
    from pate.runs.console import Quiet
    from pate.runs.context import RunContext, RunOptions
    from pate.voters import voters_of

    config = voters.config
    voters.build_components(lambda: suppress(NotTrusted))
    context = RunContext(config, "", RunOptions(config_dir=config_dir, pages=False), Quiet(), public)
    run_checks(context, skip=NotTrusted)
    student = context.student_seconds if context.student_seconds else None
    # How long it takes tells about how many records there are, and what is printed may end up in a log.
    records = len(private) if public.benchmark and isinstance(private, Sized) else public_record_count(config.data)
    if guard.refused or records is None:
        return Seconds(None, student)
    try:
        return Seconds(
            voters_of(with_learned_features(config, public.X_public)).training_seconds(public, records), student
        )
    except ConfigError:
        if guard.refused:  # by a network's own module, which is imported with its first weights
            return Seconds(None, student)
        raise


def _histograms(
    votes: Path | None, gaps: str | None, teachers: int | None, n_classes: int
) -> tuple[Counts | None, np.ndarray | None]:
    if votes is not None:
        from pate.data.arrays import load_votes

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


def _plan_object(
    mechanism: Mechanism,
    workload: Workload,
    teachers: int | None,
    counts: Counts | None,
    weights: np.ndarray | None,
    private: bool,
) -> dict[str, Any]:
    from pate.planning import plan as planning

    epsilon = planning.epsilon_of(mechanism, workload)
    expected = None if counts is None else planning.expect(mechanism, counts, weights, workload.max_queries)
    return {
        "mechanism": {"name": mechanism.name, **dataclasses.asdict(mechanism)},  # type: ignore[call-overload]
        "max_queries": workload.max_queries,
        "max_answers": workload.max_answers,
        "delta": workload.delta,
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "epsilon_by_method": planning.epsilon_by_method(mechanism, workload),
        "one_more_query": planning.one_more_query(mechanism, workload),
        "note": mechanism.note,
        "unanimous": dataclasses.asdict(planning.answerable(mechanism, teachers, workload.n_classes)),
        "expected": None if expected is None else dataclasses.asdict(expected),
        "expected_is_private": private,
    }


def _as_object(summary: CostSummary) -> dict[str, Any]:
    methods = ("data_independent", "published_bound", "exact_rdp", "exact_pld")
    content = dataclasses.asdict(summary)
    epsilon = {method: content.pop(method) for method in methods}
    return content | {"epsilon": epsilon}


def _print_summary(mechanism: Mechanism, summary: CostSummary) -> None:
    print(f"{mechanism}: {summary.queries} queries, {summary.answered:.1f} answered on average ({PRIVATE})")
    rows = [
        ("for every data set", summary.data_independent, "may be published if the limits were fixed beforehand"),
        ("published bound", summary.published_bound, PRIVATE),
        ("exact, RDP", summary.exact_rdp, PRIVATE),
        ("exact, PLD", summary.exact_pld, PRIVATE),
    ]
    print(f"ε at δ = {summary.delta:g}")
    for name, value, note in rows:
        print(f"  {name:<20}{'none' if value is None else f'{value:.4f}':>10}   {note}")


def _print_plan(result: dict[str, Any]) -> None:
    from pate.planning.recommend import describe_parameters

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
        note = f"   ({PRIVATE})" if result["expected_is_private"] else ""
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
    axes.set(xlabel="queries", ylabel=f"ε at δ = {delta:g}", title=f"{mechanism}\n{PRIVATE}", ylim=(0, None))
    axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:
        raise ConfigError(f"--plot {path}: {str(error).splitlines()[0]}") from None
    plt.close(figure)
