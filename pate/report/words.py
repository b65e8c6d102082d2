"""The guarantee in plain words, and the rows of the summary table."""

from __future__ import annotations

import math

from pate.report.schema import BaselineReport, Report

Row = tuple[str, str]


def privacy_statement(epsilon: float, delta: float, unit: str) -> str:
    """What ε and δ promise, in a sentence that holds for every data set."""
    change = (
        "Adding or removing one record" if unit == "record" else "Adding, removing or changing all records of one id"
    )
    return f"{change} changes the probability of anything published here by at most {_factor(epsilon)}" + (
        f", except with probability about {delta:g} (δ)." if delta else "."
    )


def _factor(epsilon: float) -> str:
    """e^ε with three digits, rounded up.

    >>> _factor(0.7), _factor(13)
    ('a factor of 2.02 (e^ε)', 'a factor of 443,000 (e^ε)')
    """
    if epsilon > 18:
        return f"a factor of e^{math.ceil(epsilon)}"
    value = math.exp(epsilon)
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    up = math.ceil(value / step - 1e-9) * step
    return f"a factor of {f'{up:.3g}' if up < 1000 else f'{up:,.0f}'} (e^ε)"


def baseline_rows(report: BaselineReport, seconds: dict[str, float]) -> list[Row]:
    """What `pate baseline` shows at the end."""
    rows = [
        ("method", ", ".join(f"{key} {value}" for key, value in report.method.items())),
        ("planned", ", ".join(f"{key} {value:.4g}" for key, value in report.planned.items())),
        ("model", f"{percent(report.student.accuracy)} right on {report.student.test_examples} test examples"),
    ]
    rows = [row for row in rows if row[1]]
    if report.benchmark is not None and report.benchmark.public_accuracy is not None:
        rows.append(("public examples (benchmark)", f"{percent(report.benchmark.public_accuracy)} right"))
    if report.benchmark is not None and report.benchmark.nonprivate_accuracy is not None:
        rows.append(("without privacy (benchmark)", percent(report.benchmark.nonprivate_accuracy)))
    rows.append(("ε to publish", f"{report.privacy.epsilon:.3g} at δ = {report.privacy.delta:g}, for every data set"))
    rows.append(("what it means", report.privacy.statement))
    rows.append(("seconds", ", ".join(f"{stage} {time:.1f}" for stage, time in seconds.items())))
    return rows


def summary_rows(report: Report, seconds: dict[str, float]) -> list[Row]:
    """What the terminal shows at the end of a run."""
    queries, benchmark = report.queries, report.benchmark
    rows = [
        ("teachers", f"{report.n_teachers}"),
        ("queries", f"{queries.asked} asked, {queries.answered} answered"),
        (
            "student",
            f"{percent(report.student.accuracy)} right on {report.student.test_examples} test examples",
        ),
    ]
    if report.student.accuracy is None:
        rows[-1] = ("student", "trained; no test labels to measure it by")
    if benchmark is not None:
        if benchmark.label_accuracy is not None:
            rows.append(("labels (benchmark)", f"{percent(benchmark.label_accuracy)} of the released ones are right"))
        if benchmark.nonprivate_accuracy is not None:
            rows.append(("without privacy (benchmark)", percent(benchmark.nonprivate_accuracy)))
    rows.append(("ε to publish", f"{report.privacy.epsilon:.3g} at δ = {report.privacy.delta:g}"))
    rows.append(("what it means", report.privacy.statement))
    if report.privacy.sanitised is not None:
        sanitised = report.privacy.sanitised
        rows.append(("ε sanitised", f"{sanitised.epsilon:.3g} at δ = {sanitised.delta:g}, for what was released here"))
    rows.append(("seconds", ", ".join(f"{stage} {time:.1f}" for stage, time in seconds.items())))
    return rows


def small(delta: float) -> str:
    """A probability such as δ, for people.

    >>> small(1e-5), small(2.5e-6), small(0)
    ('10⁻⁵', '2.5e-06', '0')
    """
    power = round(math.log10(delta)) if delta > 0 else 0
    if power < 0 and math.isclose(delta, 10.0**power):
        return "10" + f"{power}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{delta:g}"


def percent(share: float | None) -> str:
    """
    >>> percent(0.8651)
    '86.5 %'
    """
    return "not measured" if share is None else f"{100 * share:.1f} %"
