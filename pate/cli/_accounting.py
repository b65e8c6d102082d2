"""pate account: what the queries of a votes file cost, and what its commands' errors call a parameter."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec, TypeVar

import typer

from pate.cli._options import AsJson, required_settings
from pate.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pate.mechanisms import Counts, Mechanism
    from pate.planning.costs import CostSummary

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


_OPTIONS = {"n_teachers": "teachers", "n_classes": "classes"}


def naming_options(command: Callable[P, R]) -> Callable[P, R]:
    """The command, whose errors name parameters as the options that they came from, unless they came from a config."""

    @wraps(command)
    def call(*arguments: P.args, **given: P.kwargs) -> R:
        from pate.accounting._parameters import ParameterError, shown

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
