"""A run and its guarantee explained in plain words, for people without a background in differential privacy."""

from __future__ import annotations

import math
from typing import Any

from pate.mechanisms import Mechanism
from pate.report.formats import percent
from pate.report.schema import BaselineReport, Description, Report, Student, Together

AnyReport = Report | BaselineReport
_FEWEST = 20  # test examples: of fewer, nothing can be told
_SKEWED = 0.6  # of the test examples are of one class: always saying it looks good
_RECOGNISES = 0.1  # beyond one class in all: what a student recognises, on average over classes, that is some good


def is_majority_class_model(student: Student) -> bool:
    """Whether always saying one class would be right as often, as far as so many test examples can tell.

    One that recognises clearly more of the classes than that, on average, pays for it in accuracy: that is no failure.
    """
    if student.accuracy is None or student.commonest_share is None or student.test_examples < _FEWEST:
        return False
    if student.balanced_accuracy is not None and student.confusion is not None:
        classes = sum(any(row) for row in student.confusion)
        if student.balanced_accuracy > 1 / max(1, classes) + _RECOGNISES:
            return False
    error = math.sqrt(student.accuracy * (1 - student.accuracy) / student.test_examples)
    return student.accuracy <= student.commonest_share + error


def headline(report: AnyReport) -> str:
    """The result in one sentence."""
    what = "student" if isinstance(report, Report) else "private model"
    if report.student.accuracy is None:
        return f"A {what} with a privacy guarantee of ε = {report.privacy.epsilon:.3g}"
    right, epsilon = percent(report.student.accuracy), f"ε = {report.privacy.epsilon:.3g}"
    if is_majority_class_model(report.student):
        return f"A {what} that is no better than always saying one class ({right} right), at {epsilon}"
    return f"A {what} that is right on {right} of the test examples{by_class(report.student)}, at {epsilon}"


def skewed(student: Student) -> bool:
    """Whether accuracy alone would deceive: one class has most test examples, or a class far fewer than its part.

    Far fewer is less than half of what it would have if classes were equally frequent.
    """
    sizes = [sum(row) for row in student.confusion or () if any(row)]
    if len(sizes) < 2:
        return False
    return max(sizes) > _SKEWED * sum(sizes) or min(sizes) < sum(sizes) / (2 * len(sizes))


def by_class(student: Student) -> str:
    """What belongs beside accuracy where classes are skewed, else nothing."""
    if student.balanced_accuracy is None or student.confusion is None or not skewed(student):
        return ""
    rows = [(sum(row), row[i]) for i, row in enumerate(student.confusion) if any(row)]
    size, right = min(rows)
    return f" ({percent(student.balanced_accuracy)} on average over classes, {percent(right / size)} of the rarest)"


def privacy_statement(epsilon: float, delta: float, unit: str, changed: bool = False) -> str:
    """What ε and δ promise, in a sentence that holds for every data set; `changed`: of what is changed, too."""
    step = "Adding, removing or changing" if changed else "Adding or removing"
    whose = "all records of one id" if unit == "id" else "one record"
    return f"{step} {whose} changes the probability of anything published here by at most {_factor(epsilon)}" + (
        f", except with probability about {delta:g} (δ)." if delta else "."
    )


def guarantee(report: AnyReport) -> list[str]:
    """What was done and what it promises, one or two sentences each."""
    privacy = report.privacy
    whose = "one record was" if privacy.unit == "record" else "the records of one id (say, one person) were"
    except_for = f", except with probability about {privacy.delta:g}" if privacy.delta else ""
    return [
        _what_was_done(report),
        privacy.statement,
        f"In other words: whoever thinks it an even chance that {whose} among the private data "
        f"{how_sure(privacy.epsilon)} from everything published here{except_for}, whatever else they know.",
        *([together_in_words(privacy.together)] if privacy.together is not None else []),
    ]


def together_in_words(together: Together) -> str:
    """What all known runs on the same private data cost.

    >>> together_in_words(Together(epsilon=2.5, delta=2e-5, others=1, uncounted=0, shared_ledger=False, unit="record"))
    'Together with 1 other known run on the same private data it costs ε = 2.5 at δ = 2e-05 for one record.'
    """
    runs = f"{together.others} other known run{'s' * (together.others != 1)} on the same private data"
    if together.shared_ledger:
        who = "All runs that share its ledger" + (f", and {runs}," if together.others else "")
        cost = f"{who} cost at most"
    else:
        cost = f"Together with {runs} it costs" if together.others else "By itself it costs"
    whose = "one record" if together.unit == "record" else "all records of one id"
    told = f"{cost} ε = {together.epsilon:.4g} at δ = {together.delta:.3g} for {whose}."
    more = f" Of {together.uncounted} more on the same data the cost is not known." if together.uncounted else ""
    return told + more


def how_sure(epsilon: float) -> str:
    """How sure someone with even odds can become, rounded up.

    >>> how_sure(1)
    'can become at most 73.2 % sure of it'
    >>> how_sure(12)
    'may become all but sure of it (ε is large)'
    """
    share = math.ceil(1000 / (1 + math.exp(-epsilon)) - 1e-9) / 10
    return (
        f"can become at most {share:.1f} % sure of it" if share < 100 else "may become all but sure of it (ε is large)"
    )


def described(mechanism: Mechanism, n_teachers: int) -> Description:
    """What a mechanism says of itself, for the report to keep."""
    subsampled = mechanism.split(n_teachers).rate is not None
    return Description(title=mechanism.title, releases=mechanism.describe(), subsampled=subsampled)


def describe_parameters(settings: dict[str, Any]) -> str:
    """Parameters beside a name, short ones only.

    >>> describe_parameters({"C": 10, "name": "x", "steps": [{"deep": 1}]})
    'C 10'
    """
    shown = []
    for key, value in settings.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        if key != "name" and "{" not in text and len(text) <= 40:
            shown.append(f"{key.replace('_', ' ')} {text}")
    return ", ".join(shown)


def planned_in_words(planned: dict[str, Any]) -> str:
    """What was worked out before training; numbers of steps are whole, however many.

    >>> planned_in_words({"sigma": 1.23456, "steps": 12_345})
    'sigma 1.235, steps 12345'
    """
    return ", ".join(f"{key} {f'{value:.4g}' if isinstance(value, float) else value}" for key, value in planned.items())


def short_name(name: str) -> str:
    """The last part of a dotted path.

    >>> short_name("sklearn.svm.SVC")
    'SVC'
    """
    return name.rpartition(".")[2]


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


def _what_was_done(report: AnyReport) -> str:
    if isinstance(report, BaselineReport):
        return (
            f"One model was trained on the private records by {report.method['name']}, which adds noise while it "
            "learns; only that model left the trust boundary."
        )
    return report.voters.summary
