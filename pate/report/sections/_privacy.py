"""The guarantee in plain words, for people without a background in differential privacy, and for officers."""

from __future__ import annotations

import math
from functools import partial

from pate.report import _plots as plots
from pate.report._pages import Content, PageBlock, PageTable, Plot, Section, describe_planned, describe_settings, small
from pate.report.schema import AnyReport, BaselineReport, EpsilonCurves, RelatedRuns, Report


def privacy_statement(epsilon: float, delta: float, unit: str, changed: bool = False) -> str:
    """What ε and δ promise, in a sentence that holds for every data set; `changed`: of what is changed, too."""
    step = "Adding, removing or changing" if changed else "Adding or removing"
    whose = "all records of one id" if unit == "id" else "one record"
    return f"{step} {whose} changes the probability of anything published here by at most {_factor(epsilon)}" + (
        f", except with probability about {delta:g} (δ)." if delta else "."
    )


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


def _describe_together(together: RelatedRuns) -> str:
    """What all known runs on the same private data cost.

    >>> _describe_together(RelatedRuns(epsilon=2.5, delta=2e-5, others=1, uncounted=0, shared_ledger=False, unit="id"))
    'Together with 1 other known run on the same private data it costs ε = 2.5 at δ = 2e-05 for all records of one id.'
    """
    runs = f"{together.others} other known run{'s' * (together.others != 1)} on the same private data"
    if together.shared_ledger:
        cost = "All runs that share its ledger" + (f", and {runs}," if together.others else "") + " cost at most"
    else:
        cost = f"Together with {runs} it costs" if together.others else "By itself it costs"
    whose = "one record" if together.unit == "record" else "all records of one id"
    more = f" Of {together.uncounted} more on the same data the cost is not known." if together.uncounted else ""
    return f"{cost} ε = {together.epsilon:.4g} at δ = {together.delta:.3g} for {whose}.{more}"


def guarantee(report: AnyReport) -> Section:
    """Every ε of the run that may be published, and what the one to publish promises."""
    privacy = report.privacy
    facts = [("ε to publish", f"{privacy.epsilon:.3g} at δ = {privacy.delta:g}, for every data set")]
    whose = "one record was" if privacy.unit == "record" else "the records of one id (say, one person) were"
    except_for = f", except with probability about {privacy.delta:g}" if privacy.delta else ""
    promise = [
        privacy.statement,
        f"In other words: whoever thinks it an even chance that {whose} among the private data "
        f"{how_sure(privacy.epsilon)} from everything published here{except_for}, whatever else they know.",
    ]
    content: list[Content] = [*promise]
    if privacy.together is not None:
        facts.append(("ε of all runs", _describe_together(privacy.together)))
        content.append(_describe_together(privacy.together))
    if privacy.epsilon_added_or_removed is not None:
        only = f"{privacy.epsilon_added_or_removed:.3g}, if records are only added or removed"
        facts.append(("ε otherwise", only))
    facts.append(("what it means", privacy.statement))
    kind = (
        "This ε is the cost of limits that were fixed before the private data was used. It holds for every data set, "
        "does not depend on what the data were, and may be published."
    )
    content.append(kind)
    statement = [
        f"(ε, δ)-differential privacy with ε = {privacy.epsilon:.4g} and δ = {privacy.delta:g}.",
        kind,
        *promise,
    ]
    if privacy.sanitised is not None:
        cost = f"{privacy.sanitised.epsilon:.4g} at δ = {privacy.sanitised.delta:g}"
        facts.append(("ε sanitised", f"{cost}, for what was released here"))
        second = (
            f"A second figure was released with noise: the answers of this run cost at most ε = {cost}. The cost of "
            "releasing it is part of both figures."
        )
        content.append(second)
        statement.append(second)
    if report.benchmark is not None:
        content.append(PageBlock("note", report.benchmark.note))
    return Section("The guarantee", facts, content, statement)


def published(report: AnyReport) -> Section:
    """What the statement covers."""
    things = ["model/: the trained model"]
    if isinstance(report, Report):
        things = [report.voters.labels, "student/: a model trained on those labels and on public examples"]
    things.append("report.json, report.html, plots/, privacy.txt: this description")
    rest = "Everything else of the run (above all the folder private/ and ledger.db) stays with the operator."
    listed = [f"- {thing}" for thing in things]
    return Section("What is published", statement=("It covers what was published:", *listed, rest))


def protected(report: AnyReport) -> Section:
    """Whom ε protects, and against which changes."""
    if report.privacy.unit == "id":
        unit = (
            "Unit of privacy: all records that carry one id (for example all records of one person, if the id column "
            "names persons)."
        )
        neighbours = (
            "Neighbouring data sets: two data sets that differ in the records of one id, added, removed or changed. "
            "Replacing one id by another is two such steps."
        )
        if isinstance(report, BaselineReport):  # of a person with several records one counts: which one, may change
            neighbours = (
                "Neighbouring data sets: two data sets of which one has the records of one id more. Changing them, or "
                "replacing one id by another, is two such steps. Of an id with several records one counts."
            )
    else:
        unit = (
            "Unit of privacy: one record. A person with several records is protected less: with k records the "
            "guarantee is that of k steps (about k times the ε, and a larger δ)."
        )
        neighbours = (
            "Neighbouring data sets: two data sets of which one has one record more. Replacing a record by another is "
            "two such steps."
        )
    return Section("Who is protected", statement=(unit, neighbours))


def mechanism(report: AnyReport) -> Section:
    """How noise was added."""
    if isinstance(report, BaselineReport):
        settings = describe_planned(report.planned)
        lines = [
            f"Method: {report.method['name']} ({describe_settings(report.method)}).",
            f"Worked out before training: {settings}." if settings else "Noise is added as the method's proof demands.",
        ]
    else:
        about = report.description
        lines = [
            report.voters.sensitivity,
            f"Mechanism: {about.title} ({describe_settings(report.mechanism)}). A query releases {about.releases}.",
            "Noise is integer valued and drawn from the operating system's entropy; the sampler's error is counted in "
            "δ. A label and its charge are stored together before anyone sees the label.",
        ]
    return Section("The mechanism", statement=lines)


def limits(report: AnyReport) -> Section:
    """What was fixed beforehand, and that ε of several runs add up."""
    fixed = ("One training run with the parameters above.",)
    others = "Other runs and releases on the same private data are not in this figure: their ε add up."
    if report.privacy.together is not None:
        others += f" {_describe_together(report.privacy.together)}"
    return Section("Limits", statement=(*(report.voters.limits if isinstance(report, Report) else fixed), others))


def coverage(report: AnyReport) -> Section:
    """What the guarantee does not cover."""
    lines = [
        "- What was known or inferred about people before, or from other sources. Conclusions that hold for a whole "
        "population (smoking harms) are not prevented, and are not meant to be.",
        "- Public and test examples: they are treated as public. No protection is claimed for people in them.",
        "- The choice of settings (classes, noise, models), which is assumed not to be made by looking at the private "
        "data. Trying settings on the private data and publishing the best costs extra.",
        "- The operator, who sees the private data, and attacks on the computer (access rights, backups, timing).",
        "- Fairness, correctness or suitability of the model for any purpose.",
    ]
    if isinstance(report, Report):
        lines.append(
            "- Anything under private/: votes, teachers and figures computed from them have no guarantee at all."
        )
    if report.benchmark is not None:
        lines.append(
            "- Benchmark figures. In this run public data plays private; accuracy of labels and of a model without "
            "privacy are shown although a run on private data must not show them."
        )
    return Section("What is not covered", statement=lines)


def verification(report: AnyReport) -> Section:
    """How to check the guarantee afterwards."""
    lines = ["The figures are in report.json under `privacy`; report.html says how to repeat the run."]
    facts = []
    if isinstance(report, Report):
        lines.append("`pate ledger verify RUN` checks that no charge was changed or removed since.")
        if report.anchored:
            lines.append(
                "The ledger's codes were also kept outside the run (an anchor), so that a copy of the run which goes "
                "on, or one that was rolled back, is found."
            )
        elif report.anchored is not None:
            facts.append(("anchor", "none: a copy of the run that goes on beside it would not be noticed"))
            lines.append(
                "The ledger's codes were kept in the run alone (no anchor): that no copy of it went on is the "
                "operator's word."
            )
    return Section("How to check it", facts, statement=lines)


def cost_by_queries(report: AnyReport) -> Section:
    """ε against the number of queries, from public parameters alone."""
    title = "Privacy cost by number of queries"
    if not isinstance(report, Report) or report.curves is None:
        return Section(title)
    limit, epsilon = report.queries.max_queries, report.privacy.epsilon
    text = (
        "The more labels are asked for, the more they can tell. These curves hold for every data set: they come from "
        "the noise and the number of queries alone."
    )
    if report.privacy.sanitised is not None:
        text += " The run's own point lies above them by the cost of the sanitised figure."
    caption = f"ε at δ = {small(report.privacy.delta)} against the number of label queries."
    if len(report.curves.epsilon) > 1:
        caption += " Both lines hold; the smaller one counts."
    alternative = f"ε grows with the number of queries, to {epsilon:.3g} at the limit of {limit} queries."
    draw = partial(plots.epsilon_by_queries, report.curves, limit, epsilon)
    return Section(title, content=(text, Plot("epsilon", alternative, caption, curves_table(report.curves), draw)))


def curves_table(curves: EpsilonCurves) -> PageTable:
    """ε after so many queries, one column per way of counting."""
    rows = [
        (str(n), *("∞" if values[i] is None else f"{values[i]:.3f}" for values in curves.epsilon.values()))
        for i, n in enumerate(curves.queries)
    ]
    return PageTable(("queries", *curves.epsilon), rows)


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
